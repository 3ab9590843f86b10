"""When steps without graphs were slow, and whether two runs were so at once: recorded runs moved side by side."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analysis.db import connect, read_tables
from analysis.load import load
from tests import make_store

EAGER, OTHER = "32b.eager.sustained.r1.p1a1", "32b.compile_only.sustained.r1.p1a1"


def side_by_side(folder: Path, later_s: float) -> duckdb.DuckDBPyConnection:
    """The recorded runs, that of compile_only moved to another GPU and its load `later_s` after the begin of eager's;
    the others are moved to another boot."""
    load(make_store.recorded_store(folder / "r"), folder / "r.duckdb")
    con = connect(folder / "r.duckdb", read_only=False)
    begins = dict(con.execute("SELECT folder, window_begin_ns FROM runs").fetchall())
    shift = begins[EAGER] + round(later_s * 1e9) - begins[OTHER]
    for table in ("attempts", "runs"):
        columns = con.execute(f"SELECT column_name FROM (DESCRIBE {table}) WHERE ends_with(column_name, '_ns')")
        moved = ", ".join(f"{name} = {name} + {shift}" for (name,) in columns.fetchall())
        con.execute(f"UPDATE {table} SET gpu_uuid = 'GPU-2', {moved} WHERE folder = ?", [OTHER])
        con.execute(f"UPDATE {table} SET machine_id = 'another' WHERE folder NOT IN (?, ?)", [EAGER, OTHER])
    con.execute("UPDATE decode_fives SET t_ns = t_ns + ? WHERE folder = ?", [shift, OTHER])
    return con


def records(con: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    table = next(t for t in read_tables(con) if t.name == name)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def fives(con: duckdb.DuckDBPyConnection, folder: str) -> list[tuple[int, float, float]]:
    """Moment of the first step in ns, mean milliseconds, and the same over the usual of its like."""
    return con.execute(
        """SELECT t_ns, ms, ms / q[2] FROM decode_fives JOIN usual_steps USING (setup, model, profile, arm, decoding)
        WHERE folder = ?""",
        [folder],
    ).fetchall()


def slow_down(con: duckdb.DuckDBPyConnection, folder: str, seconds: str) -> None:
    """20 ms for every five, 40 for those of these clock seconds."""
    when = seconds.replace("second", "(t_ns // 1000000000)")
    con.execute(f"UPDATE decode_fives SET ms = if({when}, 40, 20) WHERE folder = ?", [folder])


def doing(con: duckdb.DuckDBPyConnection, run: str, load: str, t_ns: float) -> str:
    """The column for what `run`, whose load is in the column `load`, did at a moment."""
    columns = "exec_ns, healthy_ns, window_begin_ns, window_end_ns, run_begin_ns, run_end_ns"
    times = con.execute(f"SELECT {columns} FROM runs WHERE folder = ?", [run]).fetchone() or ()
    names = ("slow_while_an_engine_starts", load, "beside_the_rest_of_a_run")
    return next((n for n, a, b in zip(names, times[::2], times[1::2], strict=True) if a <= t_ns <= b), "beside_nothing")


@pytest.mark.parametrize("other_mode", ["NONE", "FULL"])
def test_fives_are_sorted_by_what_the_other_gpu_did(tmp_path: Path, other_mode: str) -> None:
    con = side_by_side(tmp_path, 35)
    for table in ("attempts", "runs"):
        con.execute(f"UPDATE {table} SET cudagraph_mode = ? WHERE folder = ?", [other_mode, OTHER])
    slow_down(con, EAGER, "second % 3 = 0")
    expected: dict[str, list[tuple[float, float]]] = defaultdict(list)
    load = "beside_a_load_without" if other_mode == "NONE" else "beside_a_load_with_graphs"
    for t_ns, ms, over in fives(con, EAGER):
        expected[doing(con, OTHER, load, t_ns)].append((ms, over))
    rows = {row["arm"]: row for row in records(con, "09_slow_when")}
    assert set(rows) == ({"eager", "compile_only"} if other_mode == "NONE" else {"eager"})
    row, shares = rows["eager"], {}
    for name in (name for name in row if name.startswith(("slow_while", "beside"))):
        decode_s = 5 * sum(ms for ms, _ in expected[name]) / 1e3
        if decode_s < 4:
            assert row[name] == "not seen"
            continue
        shares[name] = 500 * sum(ms for ms, over in expected[name] if over > 1.2) / 1e3 / decode_s
        told = [float(number) for number in re.findall(r"\d+", row[name])]
        assert told == pytest.approx([shares[name], decode_s, 1], abs=0.51)
    assert {"slow_while_an_engine_starts", load} <= set(shares)
    less = shares["slow_while_an_engine_starts"] - shares[load]
    assert row["starts_less_loads"] == (f"[{less:.0f}]" if other_mode == "FULL" else "not seen")


def test_a_run_slow_throughout_is_counted_and_one_in_the_limit_named(tmp_path: Path) -> None:
    """Two eager runs, one of which takes twice as long in all its steps."""
    con = side_by_side(tmp_path, 1e6)
    for table in ("attempts", "runs", "decode_fives"):
        con.execute(f"UPDATE {table} SET arm = 'eager' WHERE folder = ?", [OTHER])
    con.execute("UPDATE decode_fives SET ms = 20")
    row = next(row for row in records(con, "09_pace") if row["arm"] == "eager")
    assert row["slow_throughout"] == "0 of 2"
    con.execute("UPDATE decode_fives SET ms = 40 WHERE folder = ?", [OTHER])
    row = next(row for row in records(con, "09_pace") if row["arm"] == "eager")
    assert row["slow_throughout"] == "1 of 2"
    ((runs, in_limit),) = con.execute("SELECT runs, in_limit FROM slow_throughout WHERE arm = 'eager'").fetchall()
    assert (runs, in_limit) == (2, 1)


@pytest.mark.parametrize(("ready_s", "seen"), [(20, {"slow_while_an_engine_starts"}), (None, set())])
def test_a_plain_loop_is_a_neighbour_and_a_sweep_tells_no_start(
    tmp_path: Path, ready_s: int | None, seen: set[str]
) -> None:
    con = side_by_side(tmp_path, 1e6)
    ((machine, begin, end),) = con.execute(
        "SELECT machine_id, window_begin_ns, window_end_ns FROM runs WHERE folder = ?", [EAGER]
    ).fetchall()
    ready = ready_s and begin + ready_s * 10**9
    con.execute(
        """INSERT INTO loop_runs (loop, gpu_uuid, machine_id, begin_ns, ready_ns, end_ns)
        VALUES ('x', 'GPU-2', ?, ?, ?, ?)""",
        [machine, begin - 10**9, ready, end + 10**9],
    )
    row = next(row for row in records(con, "09_slow_when") if row["arm"] == "eager")
    columns = {name for name in row if name.startswith(("slow_while", "beside"))}
    assert {name for name in columns if row[name] != "not seen"} == seen | {"beside_the_rest_of_a_run"}


@pytest.mark.parametrize(("seconds", "both"), [("second % 20 < 10", True), ("second % 20 >= 10", False)])
def test_runs_slow_at_once_are_told_from_runs_slow_each_on_its_own(tmp_path: Path, seconds: str, both: bool) -> None:
    con = side_by_side(tmp_path, 3)
    slow_down(con, EAGER, "second % 20 < 10")
    slow_down(con, OTHER, seconds)
    (row,) = records(con, "09_slow_together")
    assert (row["run"], row["beside"]) == (OTHER, EAGER)
    assert row["seconds"] >= 30
    assert 15 < row["both_by_chance_pct"] < 40
    assert row["both_pct"] > 40 if both else row["both_pct"] < 10


def test_alone_on_its_host_no_run_was_slow_beside_another(tmp_path: Path) -> None:
    load(make_store.recorded_store(tmp_path / "r"), tmp_path / "r.duckdb")
    with connect(tmp_path / "r.duckdb") as con:
        rows = records(con, "09_slow_when")
        assert [row["slow_while_an_engine_starts"] for row in rows] == ["not seen"] * 2
        assert all("% of " in row["beside_nothing"] for row in rows)
        assert records(con, "09_slow_together") == []
