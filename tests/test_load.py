"""Loading results: what counts, what is set aside, spans, energy, effects."""

from __future__ import annotations

import json
import math
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analysis.db import connect
from analysis.errors import LoadError
from analysis.load import load, summarise
from benchmarks.load_and_report import make_campaign
from runner.files import sha256
from tests import make_store

TABLES = (
    "attempts",
    "reasons",
    "requests",
    "steps",
    "telemetry",
    "metrics",
    "sitting_facts",
    "effects",
    "runs",
    "run_figures",
    "unreadable",
)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store.recorded_store(tmp_path_factory.mktemp("store") / "recorded")


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store.synthetic_store(tmp_path_factory.mktemp("store") / "synthetic", repetitions=2)


def query(database: Path, sql: str) -> list[tuple[Any, ...]]:
    with connect(database) as con:
        return con.execute(sql).fetchall()


def content(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    return {table: query(database, f"FROM {table}") for table in TABLES}


def test_judged_in_several_processes_the_content_is_the_same(
    synthetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(synthetic, tmp_path / "one.duckdb")
    monkeypatch.setattr("analysis.validate._AT_ONCE", 3)
    monkeypatch.setattr("analysis.processes._RUNS", 6)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    load(synthetic, tmp_path / "two.duckdb")
    assert content(tmp_path / "two.duckdb") == content(tmp_path / "one.duckdb")


def set_aside(database: Path) -> dict[str, str | None]:
    return dict(query(database, "SELECT folder, set_aside FROM runs WHERE NOT counted"))


def test_recorded_waiting_spans(recorded: Path, tmp_path: Path) -> None:
    load(recorded, tmp_path / "r.duckdb")
    spans = query(
        tmp_path / "r.duckdb",
        "SELECT folder, steps, round(mean_running, 1), preempted, round(100 * padded_share_full, 1)"
        " FROM waiting_spans ORDER BY folder",
    )
    assert spans == [
        ("32b.compile_only.sustained.r1.p1a1", 2197, 29.2, 48, None),
        ("32b.eager.sustained.r1.p1a1", 2197, 29.2, 48, None),
        ("32b.graphs.sustained.r1.p1a1", 2455, 26.1, 55, 16.7),
        ("32b.graphs_kv_matched.sustained.r1.p1a1", 2197, 29.1, 48, 5.6),
    ]


def test_recorded_figures_agree_with_the_client(recorded: Path, tmp_path: Path) -> None:
    load(recorded, tmp_path / "r.duckdb")
    rows = query(
        tmp_path / "r.duckdb",
        "SELECT tpot_ms, bench_mean_tpot_ms, ttft_ms, bench_mean_ttft_ms, preemptions, preempted,"
        " latency_ms, (SELECT 1e3 * avg(latency_s) FROM requests q WHERE q.folder = run_figures.folder)"
        " FROM runs JOIN run_figures USING (folder)",
    )
    assert len(rows) == 4
    for tpot, client_tpot, ttft, client_ttft, counter, traced, latency, client_latency in rows:
        assert tpot == pytest.approx(client_tpot, rel=1e-5)
        assert ttft == pytest.approx(client_ttft, rel=1e-9)
        assert counter == traced
        assert latency == pytest.approx(client_latency, rel=1e-9)
        assert latency > ttft


def test_cut_off_block_does_not_count(recorded: Path, tmp_path: Path) -> None:
    summary = load(recorded, tmp_path / "r.duckdb")
    assert (summary.runs, summary.counted) == (5, 4)
    assert set_aside(tmp_path / "r.duckdb") == {
        "32b.graphs.sustained.r2.p1a1": "pass incomplete: no valid run of compile_only, eager, graphs_kv_matched"
    }


def test_set_aside_and_unreadable(synthetic: Path, tmp_path: Path) -> None:
    database = tmp_path / "s.duckdb"
    summary = load(synthetic, database)
    assert set_aside(database) == {
        "32b.eager.sustained.r1.p1a2": "failed: out_of_memory",
        "7b.graphs.sustained.r2.p1a2": "invalid: short_output",
        "32b.graphs.sustained.r90.p1a1": "pass incomplete: no valid run of eager, graphs_kv_matched",
        **{
            f"7b.{arm}.sporadic.r91.p1a1": "pass incomplete: no valid run of eager"
            for arm in ("graphs", "graphs_kv_matched")
        },
    }
    assert [row[0] for row in query(database, "SELECT folder FROM unreadable")] == ["runs/7b.graphs.sporadic.r93.p1a1"]
    assert "5 set aside: 2 pass incomplete: no valid run of eager in " in str(summary)
    assert "1 unreadable: runs/7b.graphs.sporadic.r93.p1a1 (next: " in str(summary)
    assert summarise(database) == summary


def test_superseded_attempt_and_incomplete_newer_pass(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    arms = ("graphs", "eager")
    for arm in arms:
        make_store.synthetic_run(root, "7b", arm, "sporadic", 1, arms)
    make_store.synthetic_run(root, "7b", "eager", "sporadic", 1, arms, attempt=2)
    make_store.synthetic_run(root, "7b", "eager", "sporadic", 1, arms, pass_number=2)
    load(root, tmp_path / "d.duckdb")
    assert set_aside(tmp_path / "d.duckdb") == {
        "7b.eager.sporadic.r1.p1a1": "superseded: attempt 2 counts",
        "7b.eager.sporadic.r1.p2a1": "pass incomplete: no valid run of graphs",
    }


def test_every_complete_pass_counts(tmp_path: Path) -> None:
    """A block run again later with more arms: both passes are pairs."""
    root = make_store.write_header(tmp_path / "store")
    for pass_number, arms in ((1, ("graphs", "eager")), (2, ("graphs", "eager", "graphs_kv_matched"))):
        for arm in arms:
            where = {"pass_number": pass_number, "machine_id": f"boot-{pass_number}"}
            make_store.synthetic_run(root, "32b", arm, "sustained", 1, arms, **where)
    summary = load(root, tmp_path / "d.duckdb")
    assert (summary.runs, summary.counted, set_aside(tmp_path / "d.duckdb")) == (5, 5, {})
    assert query(tmp_path / "d.duckdb", "SELECT DISTINCT pair_id FROM runs ORDER BY ALL") == [
        ("32b.sustained.r1.p1",),
        ("32b.sustained.r1.p2",),
    ]
    found = query(
        tmp_path / "d.duckdb",
        "SELECT arm_a, n, len(points) FROM effects WHERE metric = 'output_tok_s' AND arm_b = 'eager' ORDER BY ALL",
    )
    assert found == [("graphs", 2, 2), ("graphs_kv_matched", 1, 1)]


def test_block_over_two_machines_does_not_count(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    for arm, machine in (("graphs", "boot-1"), ("eager", "boot-2")):
        make_store.synthetic_run(root, "7b", arm, "sporadic", 1, ("graphs", "eager"), machine_id=machine)
    load(root, tmp_path / "d.duckdb")
    assert set(set_aside(tmp_path / "d.duckdb").values()) == {"invalid: block_on_several_gpus"}


def test_load_is_idempotent_and_order_independent(
    synthetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(synthetic, tmp_path / "a.duckdb")
    first = content(tmp_path / "a.duckdb")
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(sorted(glob(self, pattern), reverse=True)))
    load(synthetic, tmp_path / "a.duckdb")  # over the first, folders listed backwards
    assert content(tmp_path / "a.duckdb") == first
    assert [p.name for p in tmp_path.iterdir()] == ["a.duckdb"]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    root = make_store.write_header(tmp_path / "store")
    for repetition in (1, 2):
        for arm in ("graphs", "eager"):
            make_store.synthetic_run(root, "7b", arm, "sustained", repetition, ("graphs", "eager"), telemetry=True)
    return root


def test_damaged_file_loses_one_run_only(small: Path, tmp_path: Path) -> None:
    (small / "runs" / "7b.graphs.sustained.r1.p1a1" / "steps.parquet").write_bytes(b"PAR1 cut off")
    (small / "runs" / "7b.eager.sustained.r2.p1a1" / "bench.json").unlink()
    load(small, tmp_path / "d.duckdb")
    problems = dict(query(tmp_path / "d.duckdb", "FROM unreadable"))
    assert "steps.parquet was changed after the run" in problems["runs/7b.graphs.sustained.r1.p1a1"]
    assert problems["runs/7b.eager.sustained.r2.p1a1"] == "bench.json is missing"
    assert query(tmp_path / "d.duckdb", "SELECT count(DISTINCT folder) FROM requests") == [(2,)]


def test_parquet_without_a_column_is_unreadable(small: Path, tmp_path: Path) -> None:
    folder = small / "runs" / "7b.graphs.sustained.r1.p1a1"
    with duckdb.connect() as con:
        con.execute(f"COPY (SELECT 1 AS step) TO '{folder / 'steps.parquet'}' (FORMAT parquet)")
    record = json.loads((folder / "run.json").read_text())
    hashes = {path.name: sha256(path) for path in folder.iterdir() if path.name != "run.json"}
    (folder / "run.json").write_text(json.dumps(record | {"files_sha256": hashes}))
    load(small, tmp_path / "d.duckdb")
    ((_, problem),) = query(tmp_path / "d.duckdb", "FROM unreadable")
    assert "t_ns" in problem
    assert query(
        tmp_path / "d.duckdb", "SELECT count(*) FROM requests WHERE folder = '7b.graphs.sustained.r1.p1a1'"
    ) == [(0,)]


def test_failed_load_keeps_the_old_database(small: Path, tmp_path: Path) -> None:
    load(small, tmp_path / "d.duckdb")
    before = content(tmp_path / "d.duckdb")
    (small / "campaign.json").write_text("{")
    with pytest.raises(LoadError, match=r"campaign\.json cannot be read"):
        load(small, tmp_path / "d.duckdb")
    assert content(tmp_path / "d.duckdb") == before


def test_bad_places(small: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no campaign\.json"):
        load(tmp_path, tmp_path / "d.duckdb")
    (tmp_path / "file").write_text("a file")
    with pytest.raises(LoadError, match="cannot be written"):
        load(small, tmp_path / "file" / "d.duckdb")
    with pytest.raises(LoadError, match="campaign load"):
        connect(tmp_path / "none.duckdb")
    (tmp_path / "text.duckdb").write_text("not a database, though long enough to be read as one" * 100)
    with pytest.raises(LoadError, match="cannot be opened"):
        connect(tmp_path / "text.duckdb")


def test_energy_of_the_window(small: Path, tmp_path: Path) -> None:
    load(small, tmp_path / "d.duckdb")
    rows = query(
        tmp_path / "d.duckdb",
        "SELECT arm, window_j, duration_s, mean_power_w, tok_per_j, bench_output_tokens"
        " FROM run_figures JOIN runs USING (folder)",
    )
    for arm, joules, duration, power, tok_per_j, tokens in rows:
        watts = 300 if arm == "graphs" else 290
        assert joules == pytest.approx(watts * duration, rel=1e-3)
        assert power == pytest.approx(watts, rel=1e-3)
        assert tok_per_j == pytest.approx(tokens / joules)


def test_energy_is_null_where_samples_do_not_cover_the_window(small: Path, tmp_path: Path) -> None:
    folder = small / "runs" / "7b.graphs.sustained.r1.p1a1"
    record = json.loads((folder / "run.json").read_text())
    with duckdb.connect() as con:
        con.execute(
            f"CREATE TABLE t AS FROM read_parquet('{folder / 'telemetry.parquet'}') WHERE t_ns < ?",
            [record["timeline"]["window_end_ns"]],
        )
        con.execute(f"COPY t TO '{folder / 'telemetry.parquet'}' (FORMAT parquet)")
    hashes = {path.name: sha256(path) for path in folder.iterdir() if path.name != "run.json"}
    (folder / "run.json").write_text(json.dumps(record | {"files_sha256": hashes}))
    load(small, tmp_path / "d.duckdb")
    null = query(tmp_path / "d.duckdb", "SELECT folder FROM run_figures WHERE window_j IS NULL AND tok_per_j IS NULL")
    assert null == [("7b.graphs.sustained.r1.p1a1",)]


def test_warm_up_steps_stay_outside_the_window(small: Path, tmp_path: Path) -> None:
    load(small, tmp_path / "d.duckdb")
    assert query(tmp_path / "d.duckdb", "SELECT min(step) FROM window_steps") == [(0,)]  # the warm-up's row is -1
    assert set(query(tmp_path / "d.duckdb", "SELECT steps FROM waiting_spans")) == {(35,)}


def test_own_time(small: Path, tmp_path: Path) -> None:
    load(small, tmp_path / "d.duckdb")
    for parts in query(
        tmp_path / "d.duckdb",
        "SELECT own_s, before_exec_s + to_probe_s + to_go_s + client_end_s + to_stop_s + stop_s + files_s"
        " FROM own_times",
    ):
        assert parts[0] == pytest.approx(parts[1], abs=1e-6)


def test_cold_runs_are_no_warm_starts(small: Path, tmp_path: Path) -> None:
    shutil.rmtree(small / "runs" / "7b.graphs.sustained.r1.p1a1")
    cold = {"compile_cache": "cold"}
    make_store.synthetic_run(small, "7b", "graphs", "sustained", 1, ("graphs", "eager"), facts=cold)
    load(small, tmp_path / "d.duckdb")
    found = query(
        tmp_path / "d.duckdb",
        "SELECT arm, estimate.n FROM estimates WHERE metric = 'start_s' AND profile = '(all)' ORDER BY arm",
    )
    assert found == [("eager", 2), ("graphs", 1)]


def test_deleting_a_run_widens_the_interval(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    for repetition in range(1, 6):
        for arm in ("graphs", "eager"):
            make_store.synthetic_run(root, "7b", arm, "sustained", repetition, ("graphs", "eager"))
    sql = (
        "SELECT n, ratio.hi - ratio.lo FROM effects"
        " WHERE (metric, profile, arm_a, arm_b) = ('output_tok_s', 'sustained', 'graphs', 'eager')"
    )
    load(root, tmp_path / "a.duckdb")
    shutil.rmtree(root / "runs" / "7b.eager.sustained.r5.p1a1")
    shutil.rmtree(root / "runs" / "7b.eager.sustained.r4.p1a1")
    load(root, tmp_path / "b.duckdb")
    ((n_all, width_all),), ((n_less, width_less),) = (
        query(tmp_path / "a.duckdb", sql),
        query(tmp_path / "b.duckdb", sql),
    )
    assert (n_all, n_less) == (5, 3)
    assert width_less > width_all


def test_effects_are_those_computed_by_hand(small: Path, tmp_path: Path) -> None:
    load(small, tmp_path / "d.duckdb")
    sql = "SELECT estimate.mean, points FROM estimates WHERE metric = 'tpot_ms' ORDER BY arm"
    (_, eager), (_, graphs) = query(tmp_path / "d.duckdb", sql)
    logs = [math.log(x / y) for x, y in zip(graphs, eager, strict=True)]
    mean, half = sum(logs) / 2, 12.7062 * abs(logs[0] - logs[1]) / 2  # t of one degree of freedom
    forward, back = query(
        tmp_path / "d.duckdb",
        "SELECT ratio.mean, ratio.lo, ratio.hi, difference.mean, p, verdict, points FROM effects"
        " WHERE metric = 'tpot_ms' ORDER BY arm_a DESC",
    )
    assert forward[:3] == pytest.approx([math.exp(mean), math.exp(mean - half), math.exp(mean + half)], rel=1e-5)
    assert forward[3] == pytest.approx(sum(graphs) / 2 - sum(eager) / 2)
    assert (forward[4], forward[5]) == (0.5, "not resolved")  # whatever the interval: two blocks decide nothing
    assert forward[6] == pytest.approx([x / y for x, y in zip(graphs, eager, strict=True)])
    assert (back[0], back[3]) == (pytest.approx(1 / forward[0]), pytest.approx(-forward[3]))


def test_a_pool_that_the_model_fits_no_request_into_has_no_prediction(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    make_store.synthetic_run(root, "7b", "eager", "sustained", 1, ("eager",), facts={"num_blocks": 2})
    load(root, tmp_path / "d.duckdb")
    assert query(tmp_path / "d.duckdb", "SELECT count(*) FROM runs WHERE counted") == [(1,)]
    assert query(tmp_path / "d.duckdb", "SELECT count(*) FROM model_steps WHERE setup <> 'published study'") == [(0,)]


def test_effects_without_interval_or_ratio(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    for arm in ("graphs", "eager"):
        make_store.synthetic_run(root, "7b", arm, "sporadic", 1, ("graphs", "eager"))
    load(root, tmp_path / "d.duckdb")
    found = query(
        tmp_path / "d.duckdb",
        "SELECT metric, n, ratio.mean IS NULL, ratio.lo, verdict, p, difference.mean FROM effects"
        " WHERE metric IN ('duration_s', 'preemptions') AND arm_a = 'eager' ORDER BY metric",
    )
    assert [row[:6] for row in found] == [
        ("duration_s", 1, False, None, "not resolved", 1.0),
        ("preemptions", 1, True, None, None, None),  # 0 against 0
    ]
    assert found[1][6] == 0


def test_interval_and_permutation(small: Path, tmp_path: Path) -> None:
    load(small, tmp_path / "d.duckdb")
    ((mean,),) = query(tmp_path / "d.duckdb", "SELECT mean95(x) FROM (VALUES (1.0), (2.0), (3.0)) v(x)")
    half = 4.302653 / math.sqrt(3)
    assert mean == {"mean": 2, "lo": pytest.approx(2 - half), "hi": pytest.approx(2 + half), "n": 3}
    for differences in ([0.1] * 5, [0.1, -0.1], [0.3, 0.1, -0.2, 0.4], [0.1]):
        sums = [abs(sum(flipped)) for flipped in product(*((d, -d) for d in differences))]
        share = sum(s >= abs(sum(differences)) - 1e-9 for s in sums) / len(sums)
        assert query(tmp_path / "d.duckdb", f"SELECT sign_flip_p({differences}::DOUBLE[])") == [(share,)]
    assert query(tmp_path / "d.duckdb", f"SELECT sign_flip_p({[0.1] * 40})") == [(None,)]


def test_the_benchmark_finds_the_runs_that_it_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "hardlink_to", lambda new, old: shutil.copy(old, new))  # from another file system
    make_campaign(tmp_path / "r", 2)
    assert sorted(path.name for path in (tmp_path / "r/runs").iterdir()) == [
        "32b.eager.sustained.r1.p1a1",
        "32b.graphs.sustained.r1.p1a1",
    ]
