"""Results of several machines into one folder: what is taken in, what is passed over, what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.config import parse_config
from runner.errors import CampaignError
from runner.store import Store, read_header, read_records
from tests.make_config import toml
from tests.make_store import synthetic_run
from tools.merge_results import differing, main, merge

MORE = ("[profile.small]", "[arm.more]\nflags = []\n[profile.small]")
OTHER = ("prompts = 40", "prompts = 41")


def folder(root: Path, *runs: tuple[str, int], edit: tuple[str, str] | None = None, sitting: str = "s1") -> Path:
    """A results folder with these runs (arm, repetition), as a sitting leaves it."""
    with Store.open(root, parse_config(toml(*([edit] if edit else [])), Path("campaign.toml"))) as store:
        store.write_sitting(sitting, {"must_agree": ["gpu.driver"], "gpu": {"driver": "1"}})
    for arm, repetition in runs:
        synthetic_run(root, "7b", arm, "sustained", repetition, ("graphs", "eager"), sitting_id=sitting)
    return root


def test_new_runs_are_taken_in_and_known_ones_passed_over(tmp_path: Path) -> None:
    into = folder(tmp_path / "into", ("graphs", 1))
    back = tmp_path / "back"
    shutil.copytree(into, back)  # resumed: the earlier run came along
    folder(back, ("graphs", 2), sitting="s2")
    (back / "loops").mkdir()
    (back / "loops" / "x.json").write_text("{}")
    (back / "runs" / "7b.graphs.sustained.r3.p1a1.partial").mkdir()
    taken = merge(into, [back])
    assert list(map(str, taken)) == ["loops/x.json", "runs/7b.graphs.sustained.r2.p1a1", "sittings/s2"]
    assert [r.repetition for r in read_records(into)[0]] == [1, 2]
    assert merge(into, [back]) == []


def test_two_workers_and_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    sources = [folder(tmp_path / arm, (arm, 1), sitting=arm) for arm in ("graphs", "eager")]
    merge(tmp_path / "into", sources)
    assert {r.arm for r in read_records(tmp_path / "into")[0]} == {"graphs", "eager"}
    assert differing(tmp_path / "into") == []


@pytest.mark.parametrize("new_first", [False, True])
def test_the_configuration_that_has_more_is_kept(tmp_path: Path, new_first: bool) -> None:
    folder(tmp_path / "into", ("graphs", 1), edit=MORE if new_first else None)
    folder(tmp_path / "back", ("graphs", 2), edit=None if new_first else MORE)
    merge(tmp_path / "into", [tmp_path / "back"])
    assert "more" in read_header(tmp_path / "into")["configuration"]["arms"]
    assert "[arm.more]" in (tmp_path / "into" / "campaign.toml").read_text()


def another_run(back: Path) -> None:
    shutil.rmtree(back / "runs")
    synthetic_run(back, "7b", "graphs", "sustained", 1, ("graphs", "eager"), short=3)


def damaged(back: Path) -> None:
    (back / "runs/7b.graphs.sustained.r2.p1a1/bench.json").write_text("{}")


def another_campaign(back: Path) -> None:
    path = back / "runs/7b.graphs.sustained.r2.p1a1/run.json"
    path.write_text(path.read_text().replace('"campaign": "test"', '"campaign": "else"'))


def edited_header(back: Path) -> None:
    header = read_header(back)
    header["configuration"]["profiles"]["small"]["prompts"] = 3
    (back / "campaign.json").write_text(json.dumps(header))


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (another_run, "are different runs of one name"),
        (damaged, "bench.json was changed after the run"),
        (another_campaign, "belongs to the campaign else, not test"),
        (edited_header, "campaign.toml and campaign.json differ in profiles.small.prompts"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_copied(
    tmp_path: Path, break_it: Callable[[Path], None], expected: str
) -> None:
    into = folder(tmp_path / "into", ("graphs", 1))
    back = folder(tmp_path / "back", ("graphs", 1), ("graphs", 2), ("eager", 1))
    break_it(back)
    with pytest.raises(CampaignError, match=expected):
        merge(into, [back])
    assert [path.name for path in (into / "runs").iterdir()] == ["7b.graphs.sustained.r1.p1a1"]


def test_another_configuration_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = folder(tmp_path / "into", ("graphs", 1))
    back = folder(tmp_path / "back", ("graphs", 2), edit=OTHER)
    assert main([str(into), str(back)]) == 2
    said = capsys.readouterr().err
    assert "it differs in profiles.small.prompts" in said
    assert "next: give it a folder of its own" in said


def test_two_sources_with_different_runs_of_one_name(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", ("graphs", 1))
    two = folder(tmp_path / "two", ("graphs", 1))
    another_run(two)
    with pytest.raises(CampaignError, match="are different runs of one name"):
        merge(tmp_path / "into", [one, two])


def test_sittings_that_must_agree_and_do_not_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = folder(tmp_path / "into", ("graphs", 1))
    back = folder(tmp_path / "back", ("graphs", 2), sitting="s2")
    provenance = back / "sittings/s2/provenance.json"
    provenance.write_text(provenance.read_text().replace('"driver": "1"', '"driver": "2"'))
    assert main([str(into), str(back)]) == 0
    assert "sittings differ in gpu.driver" in capsys.readouterr().err


def test_a_folder_that_holds_no_results(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="is not a results folder") as caught:
        merge(tmp_path / "into", [tmp_path])
    assert "--config" not in caught.value.hint
