"""The same runs without orchestration: the script on the stand-in engine, and the table that sets them beside ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.db import connect, read_tables
from analysis.load import load
from tests.make_store import synthetic_run, write_header

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "tools/gpu-host/plain_loop.py"


def rows(results: Path) -> list[dict[str, Any]]:
    load(results, results.with_name("d.duckdb"))
    with connect(results.with_name("d.duckdb")) as con:
        found = next(t for t in read_tables(con) if t.name == "15_plain_loop")
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def write_loop(results: Path, seconds_a_run: float, **changes: Any) -> None:
    """A plain loop over the synthetic runs 32b.*.sustained.r1 to r3 of the machine boot-1."""
    runs = []
    for repetition in (1, 2, 3):
        begin_ns = repetition * 10**12
        moments = {"begin_ns": begin_ns, "end_ns": begin_ns + round(seconds_a_run * 1e9)}
        moments |= {
            "ready_ns": begin_ns + 10**9,
            "client_begin_ns": begin_ns + 10**9,
            "client_end_ns": begin_ns + 10**10,
        }
        cell = {"model": "32b", "arm": "graphs", "profile": "sustained", "repetition": repetition}
        bench = {"bench_completed": 24, "bench_failed": 0, "bench_duration_s": 5.0, "bench_output_tok_s": 9.0}
        runs.append(cell | moments | bench)
    loop = {"schema_version": 1, "way": "plain", "campaign": "test", "simulated": False, "machine_id": "boot-1"}
    loop |= {"gpu_uuid": "GPU-h200", "wall_start": "2026-11-29T17:00:00+00:00", "runs": runs}
    (results / "loops").mkdir()
    (results / "loops" / "20261129T170000Z-plain.json").write_text(json.dumps(loop | changes))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_header(tmp_path)
    for repetition in (1, 2, 3):
        synthetic_run(tmp_path, "32b", "graphs", "sustained", repetition, ("graphs",))
    return tmp_path


def test_without_a_loop_nothing_is_said(results: Path) -> None:
    assert rows(results) == []


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(100.0, "at least 10%"), (58.0, "less than 10%"), (67.5, "not resolved against 10%")]
)
def test_saved_time_is_judged_by_its_interval(results: Path, seconds: float, verdict: str) -> None:
    write_loop(results, seconds)
    row, block = rows(results)
    assert (block["arm"], block["ratio"], block["ready_s"]) == ("whole block", row["ratio"], None)
    assert (row["saved_is"], row["ratio"]["n"]) == (verdict, 3), row
    assert row["ratio"]["lo"] < row["ratio"]["mean"] < row["ratio"]["hi"]
    assert float(row["theirs_s"]["mean"]) == seconds
    assert float(row["their_client_s"]) == 4.0  # 9 s of client, 5 s of window


@pytest.mark.parametrize("other", [{"machine_id": "boot-2"}, {"gpu_uuid": "GPU-2"}, {"simulated": True}])
def test_only_runs_of_the_same_boot_and_gpu_are_compared(results: Path, other: dict[str, Any]) -> None:
    write_loop(results, 100.0, **other)
    assert rows(results) == []


def test_a_damaged_file_is_named_and_hinders_nothing(results: Path) -> None:
    write_loop(results, 100.0)
    (results / "loops" / "x.json").write_text('{"runs": [')
    assert len(rows(results)) == 2
    with connect(results.with_name("d.duckdb")) as con:
        assert con.execute("SELECT folder FROM unreadable").fetchall() == [("loops/x.json",)]


def test_the_plain_way_on_the_stand_in(tmp_path: Path) -> None:
    common = ["--config", "examples/demo.toml", "--blocks", "7b.sustained.r1", "--results", str(tmp_path / "r")]
    environment = os.environ | {"CAMPAIGN_STANDIN_SPEED": "200", "PYTHONPATH": str(ROOT)}
    for script in (["-m", "runner", "run"], [str(SCRIPT), "--way", "plain"]):
        argv = [sys.executable, *script, *common, "--cache", str(tmp_path / "cache")]
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "r" / "loops").iterdir()
    loop = json.loads(path.read_text())
    assert loop["simulated"] is True
    assert {run["arm"] for run in loop["runs"]} == {"graphs", "eager"}
    for run in loop["runs"]:
        moments = [run[f"{name}_ns"] for name in ("begin", "ready", "client_begin", "client_end", "end")]
        assert moments == sorted(moments)
        assert (run["bench_completed"], run["bench_failed"]) == (96, 0)
    found = rows(tmp_path / "r")
    assert [(row["arm"], row["ratio"]["n"], row["saved_is"]) for row in found] == [
        ("eager", 1, "not resolved against 10%"),  # of one block, whatever it saved
        ("graphs", 1, "not resolved against 10%"),
        ("whole block", 1, "not resolved against 10%"),
    ]
    eager, graphs, block = ({key: float(row[f"{key}_s"]["mean"]) for key in ("ours", "theirs")} for row in found)
    for key, seconds in block.items():
        assert seconds == pytest.approx(eager[key] + graphs[key], abs=0.16)


def test_a_flag_that_a_sweep_cannot_take_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import plain_loop  # type: ignore[import-not-found]

    flags = ("--enforce-eager", "--num-gpu-blocks-override=12", "--max-cudagraph-capture-size", "64")
    assert plain_loop._as_params("a", flags) == {
        "enforce-eager": True,
        "num-gpu-blocks-override": "12",
        "max-cudagraph-capture-size": "64",
    }
    with pytest.raises(plain_loop.CampaignError, match=r"arm a: 2 cannot be told to a sweep"):
        plain_loop._as_params("a", ("--cudagraph-capture-sizes", "1", "2"))
