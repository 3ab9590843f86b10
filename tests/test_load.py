"""Loading results: what counts, what is set aside, spans, energy, effects."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analysis.db import connect
from analysis.effects import Value, compute_effects, interval, permutation_p, t975, verdict
from analysis.errors import LoadError
from analysis.load import load
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
        "SELECT tpot_ms, bench_mean_tpot_ms, ttft_ms, bench_mean_ttft_ms, preemptions, preempted"
        " FROM runs JOIN run_figures USING (folder)",
    )
    assert len(rows) == 4
    for tpot, client_tpot, ttft, client_ttft, counter, traced in rows:
        assert tpot == pytest.approx(client_tpot, rel=1e-5)
        assert ttft == pytest.approx(client_ttft, rel=1e-9)
        assert counter == traced


def test_cut_off_block_does_not_count(recorded: Path, tmp_path: Path) -> None:
    summary = load(recorded, tmp_path / "r.duckdb")
    assert (summary.runs, summary.counted) == (5, 4)
    assert set_aside(tmp_path / "r.duckdb") == {
        "32b.graphs.sustained.r2.p1a1": "block incomplete: no valid run of "
        "compile_only, eager, graphs_kv_matched"
    }


def test_set_aside_and_unreadable(synthetic: Path, tmp_path: Path) -> None:
    database = tmp_path / "s.duckdb"
    summary = load(synthetic, database)
    assert set_aside(database) == {
        "32b.eager.sustained.r1.p1a2": "failed: out_of_memory",
        "7b.graphs.sustained.r2.p1a2": "invalid: short_output",
        "32b.graphs.sustained.r90.p1a1": "block incomplete: no valid run of eager, graphs_kv_matched",
        **{
            f"7b.{arm}.sporadic.r91.p1a1": "superseded: pass 2 of its block counts"
            for arm in ("graphs", "eager", "graphs_kv_matched")
        },
    }
    assert [row[0] for row in query(database, "SELECT folder FROM unreadable")] == [
        "runs/7b.graphs.sporadic.r93.p1a1"
    ]
    assert summary.unreadable == 1
    assert "unreadable" in str(summary)


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
        "7b.eager.sporadic.r1.p2a1": "block incomplete: no valid run of graphs",
    }


def test_block_over_two_machines_does_not_count(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    for arm, machine in (("graphs", "boot-1"), ("eager", "boot-2")):
        make_store.synthetic_run(root, "7b", arm, "sporadic", 1, ("graphs", "eager"), machine_id=machine)
    load(root, tmp_path / "d.duckdb")
    assert set(set_aside(tmp_path / "d.duckdb").values()) == {"block ran on 2 machines or GPUs"}


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
            make_store.synthetic_run(
                root, "7b", arm, "sustained", repetition, ("graphs", "eager"), telemetry=True
            )
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
    (folder / "run.json").write_text(json.dumps(record | {"files_sha256": {}}))
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
    with pytest.raises(LoadError, match="cannot be written"):
        load(small, small / "campaign.json" / "d.duckdb")
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
        " FROM run_figures JOIN runs USING (folder, arm)",
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
    (folder / "run.json").write_text(json.dumps(record | {"files_sha256": {}}))
    load(small, tmp_path / "d.duckdb")
    null = query(
        tmp_path / "d.duckdb", "SELECT folder FROM run_figures WHERE window_j IS NULL AND tok_per_j IS NULL"
    )
    assert null == [("7b.graphs.sustained.r1.p1a1",)]


def test_warm_up_steps_stay_outside_the_window(small: Path, tmp_path: Path) -> None:
    load(small, tmp_path / "d.duckdb")
    assert query(tmp_path / "d.duckdb", "SELECT min(step) FROM window_steps") == [
        (0,)
    ]  # the warm-up's row is -1
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
    folder = small / "runs" / "7b.graphs.sustained.r1.p1a1"
    record = json.loads((folder / "run.json").read_text())
    record["server_log"]["compile_cache"] = "cold"
    (folder / "run.json").write_text(json.dumps(record))
    load(small, tmp_path / "d.duckdb")
    found = query(
        tmp_path / "d.duckdb",
        "SELECT arm, n FROM estimates WHERE metric = 'start_s' AND profile = '(all)' ORDER BY arm",
    )
    assert found == [("eager", 2), ("graphs", 1)]


def test_deleting_a_run_widens_the_interval(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    for repetition in range(1, 6):
        for arm in ("graphs", "eager"):
            make_store.synthetic_run(root, "7b", arm, "sustained", repetition, ("graphs", "eager"))
    sql = (
        "SELECT n, hi - lo FROM effects"
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


def values(arm: str, numbers: list[float]) -> list[Value]:
    return [Value("x", "output_tok_s", "7b", "sustained", arm, f"b{i}", v) for i, v in enumerate(numbers)]


def test_effects_swap_and_pairing() -> None:
    effects = {
        (e.arm_a, e.arm_b): e
        for e in compute_effects(values("a", [110, 115, 121]) + values("b", [100, 100, 100, 90]))
    }
    forward, back = effects["a", "b"], effects["b", "a"]
    assert (forward.n, forward.verdict, back.verdict) == (3, "higher", "lower")
    assert forward.ratio is not None
    assert back.ratio == pytest.approx(1 / forward.ratio)
    assert forward.ratio == pytest.approx(math.prod([1.1, 1.15, 1.21]) ** (1 / 3))
    assert (forward.difference, back.difference) == (pytest.approx(46 / 3), pytest.approx(-46 / 3))
    assert forward.p == pytest.approx(0.25)


def test_effects_without_interval_or_ratio() -> None:
    one, *_ = compute_effects(values("a", [110]) + values("b", [100]))
    assert (one.n, one.lo, one.hi, one.verdict) == (1, None, None, "not resolved")
    zero, *_ = compute_effects(values("a", [0, 1]) + values("b", [1, 1]))
    assert (zero.ratio, zero.p, zero.verdict, zero.difference) == (None, None, None, -0.5)


def test_interval_and_permutation() -> None:
    assert t975(4) == pytest.approx(2.776, abs=1e-3)
    mean, lo, hi = interval([1.0, 2.0, 3.0])
    assert (mean, lo, hi) == (
        2.0,
        pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-3),
        pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-3),
    )
    assert permutation_p([0.1] * 5) == pytest.approx(2 / 32)
    assert permutation_p([0.1, -0.1]) == 1.0
    assert permutation_p([0.1] * 21) is None
    assert [verdict(*bounds) for bounds in ((1.01, 1.2), (0.8, 0.99), (0.9, 1.1), (None, None))] == [
        "higher",
        "lower",
        "not resolved",
        "not resolved",
    ]
