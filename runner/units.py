"""Small values of options, with units, and how durations are written."""

import re
from collections.abc import Iterable
from itertools import groupby

from runner.errors import ConfigError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration_s(text: str) -> float:
    """Seconds of `90s`, `27m`, `1.5h` or `1h30m`. Raises ConfigError on anything else."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", text)
    if not parts or "".join(a + b for a, b in parts) != text.strip():
        raise ConfigError(f"--time-budget {text!r} is not a duration", "write it like 90s, 27m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_cpus(text: str) -> frozenset[int]:
    """CPU numbers of a list such as `0-15` or `0,2,4-7`. Raises ConfigError on anything else."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise ConfigError(f"--cpus {text!r} is not a list of CPU numbers", "write it like 0-15 or 0,2,4-7")
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(cpus)


def cpu_list(cpus: Iterable[int]) -> str:
    """What parse_cpus reads, in ranges."""
    runs = [[cpu for _, cpu in run] for _, run in groupby(enumerate(sorted(cpus)), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def duration(seconds: float) -> str:
    """'45 s', '3 min 20 s' or '2 h 05 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
