from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.units import cpu_list, parse_cpus, parse_duration_s


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("27m", 1620), ("1h30m", 5400), ("1.5h", 5400)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "27", "m", "27 minutes", "-3m", "3m!"])
def test_bad_durations_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        parse_duration_s(text)


def test_cpu_lists() -> None:
    assert parse_cpus("0-3,8") == {0, 1, 2, 3, 8}
    assert cpu_list({8, 3, 2, 1, 0}) == "0-3,8"
    for text in ("", "a", "3-1", "1,,2"):
        with pytest.raises(ConfigError, match="CPU numbers"):
            parse_cpus(text)
