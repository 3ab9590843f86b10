"""`campaign validate`: a run's verdict comes from its raw files, whatever run.json says; what it prints and returns."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from analysis.load import load
from analysis.validate import Verdict, validate
from runner.cli import main
from tests import make_store

ARMS = ("graphs", "eager")
RUN = "7b.graphs.sustained.r1.p1a1"
SHIPPED = sorted(path.parent for path in (Path(__file__).parent.parent / "results").glob("*/campaign.json"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = make_store.write_header(tmp_path / "store")
    for arm in ARMS:
        make_store.synthetic_run(root, "7b", arm, "sustained", 1, ARMS, telemetry=True)
    return root


def edit(folder: Path, /, **changes: Any) -> None:
    """Change run.json; the hashes it lists are those of the files as they are now."""
    record = json.loads((folder / "run.json").read_text())
    hashes = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.name != "run.json"}
    (folder / "run.json").write_text(json.dumps(record | {"files_sha256": hashes} | changes))


def verdict(store: Path, folder: str = RUN) -> Verdict:
    (found,) = (v for v in validate(store) if v.folder.name == folder)
    return found


def codes(found: Verdict) -> list[str]:
    return [reason.code for reason in found.reasons]


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["validate", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.mark.parametrize("results", SHIPPED, ids=lambda path: path.name)
def test_the_runs_that_ship_are_valid(results: Path) -> None:
    assert {v.place: v.reasons for v in validate(results) if v.status != "valid"} == {}


def test_all_valid(store: Path) -> None:
    code, text = run(store)
    assert code == 0
    assert text.splitlines() == [
        "valid      runs/7b.eager.sustained.r1.p1a1",
        f"valid      runs/{RUN}",
        "2 valid; 0 of the valid with warnings",
    ]


def test_one_folder_as_json(store: Path) -> None:
    code, text = run(store / "runs" / RUN, "--json")
    assert (code, json.loads(text)) == (0, [{"run": f"runs/{RUN}", "status": "valid", "reasons": []}])


def test_an_invalid_run(store: Path) -> None:
    shutil.rmtree(store / "runs" / RUN)
    make_store.synthetic_run(store, "7b", "graphs", "sustained", 1, ARMS, telemetry=True, short=3)
    code, text = run(store, "--json")
    (bad,) = (row for row in json.loads(text) if row["status"] != "valid")
    assert (code, bad["run"], bad["status"]) == (3, f"runs/{RUN}", "invalid")
    (reason,) = bad["reasons"]
    assert reason.keys() == {"code", "severity", "evidence", "advice"}
    assert (reason["code"], reason["severity"]) == ("short_output", "invalid")
    code, text = run(store / "runs" / RUN)
    assert code == 3
    assert "invalid short_output: request 3 has 5 tokens, asked for 8" in text
    assert "next: A stream broke off" in text
    assert text.splitlines()[-1].startswith("1 invalid")


def test_a_warning_leaves_it_valid(store: Path) -> None:
    shutil.rmtree(store / "runs" / RUN)
    cold = {"compile_cache": "cold"}
    make_store.synthetic_run(store, "7b", "graphs", "sustained", 1, ARMS, telemetry=True, facts=cold)
    code, text = run(store)
    assert code == 0
    assert "warning cold_compile_cache" in text
    assert "1 of the valid with warnings" in text


def test_a_failed_run_is_not_judged(store: Path) -> None:
    edit(store / "runs" / RUN, status="failed", failure_class="out_of_memory", failure_message="CUDA out of memory")
    code, text = run(store)
    assert code == 3
    assert "invalid out_of_memory: CUDA out of memory" in text


def test_recorded_verdicts_do_not_count(store: Path) -> None:
    """Neither a recorded `valid` nor a recorded `invalid`: today's gates judge the files."""
    reason = {"code": "old_gate", "severity": "invalid", "evidence": "x", "advice": "y"}
    edit(store / "runs" / RUN, status="invalid", reasons=[reason])
    assert verdict(store).status == "valid"


def repacked(folder: Path, name: str, change: Callable[[str], str]) -> None:
    text = gzip.decompress((folder / name).read_bytes()).decode()
    assert change(text) != text
    (folder / name).write_bytes(gzip.compress(change(text).encode()))


def rewritten(folder: Path, table: str, select: str, where: str = "true") -> None:
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE t AS {select} FROM read_parquet('{folder / table}.parquet') WHERE {where}")
        con.execute(f"COPY t TO '{folder / table}.parquet' (FORMAT parquet)")


# ways to make an invalid run look valid, its hashes made anew each time; and the gate that sees through it
FORGED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a request left out": ("request_count_mismatch", lambda f: rewritten(f, "requests", "SELECT *", "request > 0")),
    "a request lengthened": (
        "short_output",
        lambda f: rewritten(f, "requests", "SELECT * REPLACE (output_tokens + 1 AS output_tokens)"),
    ),
    "another window": (
        "files_disagree",
        lambda f: rewritten(f, "requests", "SELECT * REPLACE (start_s + 1 AS start_s)"),
    ),
    "steps left out": ("steps_disagree_with_metrics", lambda f: rewritten(f, "steps", "SELECT *", "step <> 5")),
    "steps of another clock": (
        "steps_disagree_with_client",
        lambda f: rewritten(f, "steps", "SELECT * REPLACE (t_ns + 60000000000 AS t_ns)"),
    ),
    "cache hits": (
        "prefix_cache_hits",
        lambda f: repacked(
            f, "metrics_after.txt.gz", lambda t: t.replace('hits_total{engine="0"} 0', 'hits_total{engine="0"} 9')
        ),
    ),
    "another pool": (
        "files_disagree",
        lambda f: repacked(f, "metrics_after.txt.gz", lambda t: t.replace('num_gpu_blocks="', 'num_gpu_blocks="1')),
    ),
    "a log without a fact": (
        "log_format_unknown",
        lambda f: repacked(f, "server.log.gz", lambda t: t.replace("KV cache size", "KV pool")),
    ),
    "another engine": (
        "engine_version",
        lambda f: repacked(f, "server.log.gz", lambda t: t.replace("(v0.23.0)", "(v0.22.1)")),
    ),
    "no log": ("log_format_unknown", lambda f: (f / "server.log.gz").unlink()),
    "no steps": ("step_trace_missing", lambda f: (f / "steps.parquet").unlink()),
    "no requests": ("no_successful_requests", lambda f: (f / "requests.parquet").unlink()),
    "no metrics": ("metrics_missing", lambda f: (f / "metrics_after.txt.gz").unlink()),
    "a throughput made up": ("files_disagree", lambda f: _scalars(f, output_throughput=9000.0)),
    "first tokens sooner": (
        "summary_disagrees",
        lambda f: rewritten(f, "requests", "SELECT * REPLACE (ttft_s / 2 AS ttft_s)"),
    ),
    "tokens faster": (
        "summary_disagrees",
        lambda f: rewritten(f, "requests", "SELECT * REPLACE ([x // 2 FOR x IN itl_us]::INTEGER[] AS itl_us)"),
    ),
    "a mean made up": ("summary_disagrees", lambda f: _scalars(f, mean_tpot_ms=1.0)),
    "another client's log": (
        "client_log_disagrees",
        lambda f: _write_gz(f / "bench.log.gz", "Failed requests:                         9       \n"),
    ),
    "an arm's other name": ("name_disagrees", lambda f: _record(f, arm="eager")),
    "a load that is none": ("name_disagrees", lambda f: _record(f, kind="prime")),
    "a sooner engine": ("moments_out_of_order", lambda f: _moments(f, healthy_ns=1)),
    "a later start": ("start_disagrees_with_samples", lambda f: _moments(f, exec_ns=_later(f, "exec_ns", 4))),
    "another place in the block": ("name_disagrees", lambda f: _record(f, order_in_block=1)),
    "steps faster": (
        "steps_end_elsewhere",
        lambda f: rewritten(f, "steps", "SELECT * REPLACE (t_ns - 2000000000 * (step > 20)::INTEGER AS t_ns)"),
    ),
    "no padding": (
        "impossible_step",
        lambda f: rewritten(f, "steps", "SELECT * REPLACE (unpadded_tokens AS padded_tokens)"),
    ),
    "a fuller pool": (
        "impossible_step",
        lambda f: rewritten(f, "steps", "SELECT * REPLACE (3 * kv_usage AS kv_usage)"),
    ),
    "another natural pool": ("files_disagree", lambda f: _record(f, num_gpu_blocks_natural=99)),
    "a neighbour on the GPU": (
        "gpu_memory_in_use",
        lambda f: rewritten(f, "telemetry", "SELECT * REPLACE (memory_used_mib + 5000 AS memory_used_mib)"),
    ),
    "heat": ("gpu_slowed", lambda f: rewritten(f, "telemetry", "SELECT * REPLACE (64 AS throttle_reasons)")),
}


def _write_gz(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))


def _record(folder: Path, **changes: Any) -> None:
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | changes))


def _moments(folder: Path, **moments: int) -> None:
    _record(folder, timeline=json.loads((folder / "run.json").read_text())["timeline"] | moments)


def _later(folder: Path, moment: str, seconds: int) -> int:
    return int(json.loads((folder / "run.json").read_text())["timeline"][moment]) + seconds * 10**9


def _scalars(folder: Path, **changes: Any) -> None:
    scalars = json.loads((folder / "bench.json").read_text())
    (folder / "bench.json").write_text(json.dumps(scalars | changes))


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_folder_is_seen_through(store: Path, how: str) -> None:
    code, change = FORGED[how]
    change(store / "runs" / RUN)
    edit(store / "runs" / RUN)
    assert code in codes(verdict(store))
    assert verdict(store).status == "invalid"


def test_a_block_copied_as_another_repetition_is_seen_through(store: Path) -> None:
    for arm in ARMS:
        folder = store / "runs" / f"7b.{arm}.sustained.r1.p1a1"
        copy = folder.with_name(folder.name.replace("r1", "r2"))
        shutil.copytree(folder, copy)
        names = {"folder": copy.name, "run_id": copy.name.removesuffix(".p1a1"), "block_id": "7b.sustained.r2"}
        edit(copy, **names, repetition=2)
    assert {(v.status, *codes(v)) for v in validate(store)} == {("invalid", "measured_twice")}


def test_a_record_that_lists_no_files_is_unreadable(store: Path) -> None:
    _scalars(store / "runs" / RUN, mean_ttft_ms=1.0)
    _record(store / "runs" / RUN, files_sha256={})
    assert (verdict(store).status, codes(verdict(store))) == ("unreadable", ["unreadable"])


def test_a_changed_file_is_unreadable(store: Path) -> None:
    path = store / "runs" / RUN / "bench.json"
    path.write_text(path.read_text() + "\n")
    code, text = run(store)
    assert code == 2
    assert f"unreadable runs/{RUN}" in text
    assert "bench.json was changed after the run" in text
    assert "next: Restore the folder from a copy, or remove it, then start the campaign again." in text


@pytest.mark.parametrize("how", ["missing", "added", "cut off", "no record", "other record"])
def test_what_cannot_be_read(store: Path, how: str) -> None:
    folder = store / "runs" / RUN
    if how == "missing":
        (folder / "steps.parquet").unlink()
    elif how == "added":
        (folder / "telemetry.csv").write_text("")
    elif how == "cut off":
        (folder / "server.log.gz").write_bytes((folder / "server.log.gz").read_bytes()[:-20])
        edit(folder)
    elif how == "no record":
        (folder / "run.json").unlink()
    else:
        edit(folder, folder="7b.eager.sustained.r1.p1a1")
    found = verdict(store)
    assert (found.status, codes(found), found.record) == ("unreadable", ["unreadable"], None)
    assert verdict(store, "7b.eager.sustained.r1.p1a1").status == "valid"
    assert run(store)[0] == 2


def test_half_written_folders_are_no_results(store: Path) -> None:
    (store / "runs" / "7b.graphs.sustained.r2.p1a1.partial").mkdir()
    assert len(validate(store)) == 2


def test_what_is_neither_a_run_nor_results(tmp_path: Path) -> None:
    code, text = run(tmp_path)
    assert code == 2
    assert "campaign.json" in text
    code, text = run(make_store.write_header(tmp_path / "empty"))
    assert code == 2
    assert "holds no runs" in text


def test_the_load_judges_anew(store: Path, tmp_path: Path) -> None:
    """Data that an earlier version took for valid: the load sets it aside, with the reason."""
    folder = store / "runs" / RUN
    rewritten(folder, "telemetry", "SELECT * REPLACE (64 AS throttle_reasons)")
    edit(folder)
    load(store, tmp_path / "d.duckdb")
    with duckdb.connect(str(tmp_path / "d.duckdb")) as con:
        rows = dict(con.execute("SELECT folder, set_aside FROM runs").fetchall())
        reasons = con.execute("SELECT folder, code, severity FROM reasons").fetchall()
    assert rows[RUN] == "invalid: gpu_slowed"
    assert reasons == [(RUN, "gpu_slowed", "invalid")]
