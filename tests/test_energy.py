"""Energy from telemetry: the counter at the window's edges, its error bound, parts that add up, and what is absent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analysis.db import connect
from analysis.evidence import read_evidence, read_record
from analysis.formats.run_record import Timeline
from analysis.gate import TelemetryFacts
from analysis.load import load
from analysis.validate import validate
from tests import make_store
from tests.test_validate import edit

ARMS = ("graphs", "eager")
SHIPPED = Path(__file__).parent.parent / "results" / "enforce_eager"
TIMES = Timeline(
    run_begin_ns=0,
    exec_ns=1_050_000_000,
    healthy_ns=3_020_000_000,
    window_begin_ns=4_025_000_000,
    window_end_ns=14_075_000_000,
    exited_ns=16_000_000_000,
)


def row(i: int, energy_mj: int | None, power_mw: int | None, throttle: int = 0) -> tuple[Any, ...]:
    return (i * 100_000_000, energy_mj, power_mw, 1980, 2619, 40 + i // 10, 500, 99, throttle)


def watts(i: int) -> int:
    """100 W until 4 s, then 600 W, from 14 s 100 W again."""
    return 600 if 40 <= i < 140 else 100


def counted(i: int) -> int:
    """mJ since the driver was loaded, read at i tenths of a second."""
    return 10**9 + sum(watts(k) * 100 for k in range(i))


def facts(tmp_path: Path, rows: Sequence[tuple[Any, ...]]) -> TelemetryFacts:
    make_store.write_header(tmp_path)
    record = make_store.make_record("graphs", "sustained", 1, TIMES, arms=ARMS)
    folder = make_store.write_run(tmp_path, record, telemetry=rows)
    (evidence,) = read_evidence([(folder, read_record(folder))])
    found = evidence.telemetry
    assert found is not None
    return found


SAMPLES = [row(i, counted(i), watts(i) * 1000) for i in range(170)]


def test_the_counter_is_read_between_the_samples_around_an_edge(tmp_path: Path) -> None:
    found = facts(tmp_path, SAMPLES)
    # 4.025 s lies a quarter into a sample interval of 600 W, 14.075 s three quarters into one of 100 W
    assert found.window_j == pytest.approx(600 * 9.975 + 100 * 0.075)
    assert found.start_j == pytest.approx(100 * 1.97)
    assert found.source == "counter"


def test_the_error_bound_holds_what_was_used_around_both_edges_and_in_one_update(tmp_path: Path) -> None:
    found = facts(tmp_path, SAMPLES)
    assert found.window_j is not None
    assert found.window_error_j == pytest.approx(60 + 10 + 0.1 * found.window_j / 10.05)


@pytest.mark.parametrize("late", [0.0, 0.3, 0.9])
def test_the_true_energy_lies_within_the_bound(tmp_path: Path, late: float) -> None:
    """A counter that is up to one update (100 ms) old at every reading."""
    stale = [row(i, round(counted(i) - late * (counted(i) - counted(max(i - 1, 0)))), None) for i in range(170)]
    found = facts(tmp_path, stale)
    assert found.window_j is not None
    assert found.window_error_j is not None
    true_j = 600 * 9.975 + 100 * 0.075
    assert abs(found.window_j - true_j) <= found.window_error_j


def test_parts_add_up_to_the_total(tmp_path: Path) -> None:
    found = facts(tmp_path, SAMPLES)
    parts = (found.start_j, found.ready_j, found.window_j, found.tail_j)
    assert None not in parts
    assert sum(parts) == pytest.approx(found.total_j)  # type: ignore[arg-type]
    assert found.total_j == pytest.approx((counted(160) - counted(10) - 5_000) / 1e3)  # from 1.05 s to 16 s


def test_integrated_power_agrees_with_the_counter(tmp_path: Path) -> None:
    found = facts(tmp_path, SAMPLES)
    assert found.window_integrated_j == pytest.approx(found.window_j, rel=0.01)


def test_a_sample_on_the_edge_itself(tmp_path: Path) -> None:
    moved = [(t + 25_000_000, *rest) for t, *rest in SAMPLES]
    found = facts(tmp_path, moved)
    assert found.window_j == pytest.approx((counted(140) - counted(40)) / 1e3 + 100 * 0.05)


def test_a_card_without_a_counter_is_integrated_and_says_so(tmp_path: Path) -> None:
    found = facts(tmp_path, [row(i, None, watts(i) * 1000) for i in range(170)])
    assert found.source == "integrated"
    assert found.window_j == found.window_integrated_j == pytest.approx(6000, rel=0.01)


def test_a_counter_is_not_replaced_by_power_where_it_fails(tmp_path: Path) -> None:
    """Its samples begin after the window's begin: no energy, although the power samples cover it."""
    found = facts(tmp_path, [row(i, counted(i) if i > 45 else None, watts(i) * 1000) for i in range(170)])
    assert (found.source, found.window_j) == ("counter", None)
    assert found.window_integrated_j is not None


def test_a_card_with_neither(tmp_path: Path) -> None:
    found = facts(tmp_path, [row(i, None, None) for i in range(170)])
    assert (found.source, found.window_j, found.counter_still_s, found.least_counted_j) == (None, None, None, None)
    assert (found.last_memory_mib, found.hottest_c) == (500, 54)  # in the window


@pytest.mark.parametrize(
    ("change", "fact", "value"),
    [
        (lambda i: row(i, counted(min(i, 100) if i < 131 else i), 0), "counter_still_s", 3.0),
        (lambda i: row(i, counted(i) - (10**9 if i > 99 else 0), 0), "least_counted_j", -999_940.0),
        (lambda i: row(i if i < 100 else i + 20, counted(i), 0), "largest_gap_s", 2.1),
        (lambda i: row(i, counted(i), 0, 64 if 100 <= i < 110 else 4), "slowed_pct", 10.0),
        (lambda i: row(i, counted(i), 0, 64 if i < 40 else 4), "slowed_pct", 0.0),  # before the window
        (lambda i: row(i, counted(i), 0, 4 if i % 2 else 0), "power_capped_pct", 50.0),
    ],
)
def test_what_the_gates_ask_for(tmp_path: Path, change: Callable[[int], Any], fact: str, value: float) -> None:
    assert getattr(facts(tmp_path, [change(i) for i in range(170)]), fact) == pytest.approx(value, abs=0.01)


BAD: dict[str, Callable[[int, tuple[Any, ...]], tuple[Any, ...]]] = {
    "energy_counter_static": lambda _, r: (r[0], 5_000_000, *r[2:]),
    "energy_counter_reset": lambda i, r: (r[0], r[1] - (10**6 if i > 380 else 0), *r[2:]),
    "energy_disagrees": lambda _, r: (*r[:2], r[2] * 11 // 10, *r[3:]),
    "energy_unsupported": lambda _, r: (r[0], None, None, *r[3:]),
}


def store_with(tmp_path: Path, change: Callable[[int, tuple[Any, ...]], tuple[Any, ...]]) -> Path:
    root = make_store.write_header(tmp_path / "store")
    for arm in ARMS:
        make_store.synthetic_run(root, "7b", arm, "sustained", 1, ARMS, telemetry=True)
    folder = root / "runs" / "7b.graphs.sustained.r1.p1a1"
    with duckdb.connect() as con:
        rows = con.execute(f"FROM read_parquet('{folder}/telemetry.parquet')").fetchall()
    make_store.write_parquet(folder / "telemetry.parquet", [change(i, r) for i, r in enumerate(rows)])
    edit(folder)
    return root


@pytest.mark.parametrize("code", BAD)
def test_energy_that_is_not_believed_is_absent_with_the_reason(tmp_path: Path, code: str) -> None:
    root = store_with(tmp_path, BAD[code])
    found = {v.record.arm: v for v in validate(root) if v.record}
    assert found["graphs"].status == "valid"
    assert code in [reason.code for reason in found["graphs"].reasons]
    assert found["eager"].reasons == ()
    load(root, tmp_path / "d.duckdb")
    with connect(tmp_path / "d.duckdb") as con:
        rows = con.execute(
            "SELECT r.arm, absent, e.window_j IS NULL, tok_per_j IS NULL, output_tok_s IS NULL"
            " FROM runs r JOIN energy e USING (folder) JOIN run_figures USING (folder) ORDER BY r.arm"
        ).fetchall()
    assert rows[0] == ("eager", None, False, False, False)
    assert rows[1][2:] == (True, True, False)
    assert code in rows[1][1]


def test_runs_by_counter_and_by_samples_are_never_pooled(tmp_path: Path) -> None:
    root = store_with(tmp_path, lambda _, r: (r[0], None, *r[2:]))
    load(root, tmp_path / "d.duckdb")
    with connect(tmp_path / "d.duckdb") as con:
        rows = con.execute("SELECT arm, setup, tok_per_j > 0 FROM runs JOIN run_figures USING (folder) ORDER BY 1")
        assert rows.fetchall() == [
            ("eager", "NVIDIA H200, random weights", True),
            ("graphs", "NVIDIA H200, random weights, energy from power samples", True),
        ]
        assert con.execute("SELECT count(*) FROM effects").fetchall() == [(0,)]


def test_energy_of_the_runs_that_ship(tmp_path: Path) -> None:
    load(SHIPPED, tmp_path / "d.duckdb")
    with connect(tmp_path / "d.duckdb") as con:
        rows = con.execute(
            "SELECT e.*, bench_duration_s FROM energy e JOIN runs USING (folder) WHERE kind = 'run' ORDER BY folder"
        )
        names = [column[0] for column in rows.description or ()]
        found = [dict(zip(names, values, strict=True)) for values in rows.fetchall()]
    limits_w = {
        json.loads(path.read_text())["gpu"]["power_limit_mw"] / 1e3 for path in SHIPPED.glob("sittings/*/*.json")
    }
    assert len(found) >= 8
    for run in found:
        assert (run["source"], run["absent"]) == ("counter", None)
        assert run["start_j"] + run["ready_j"] + run["window_j"] + run["tail_j"] == pytest.approx(run["total_j"])
        assert run["window_integrated_j"] == pytest.approx(run["window_j"], rel=0.02)
        mean_w = run["window_j"] / run["bench_duration_s"]
        assert 0 < run["window_error_j"] < max(0.02 * run["window_j"], 0.21 * mean_w)  # a short one: two samples' time
        assert 100 < mean_w < max(limits_w) * 1.02
