"""How steady a decode step was: the table against the same figures computed in Python from the recorded step traces."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from analysis.db import connect, read_tables
from analysis.load import load
from tests import make_store


def decode_fives(folder: Path) -> list[tuple[int, float]]:
    """Decoding requests and mean milliseconds of five steps in a row, in the window, that only decode as many."""
    record = (folder / "run.json").read_text(encoding="utf-8")
    begin, end = (int(record.split(f'"{name}": ')[1].split(",")[0]) for name in ("window_begin_ns", "bench_exit_ns"))
    columns = "t_ns, generated_tokens, prompt_tokens, coalesce(unpadded_tokens, 0)"
    rows = duckdb.sql(f"SELECT {columns} FROM '{folder}/steps.parquet' ORDER BY step").fetchall()
    rows = [row for row in rows if begin <= row[0] <= end]
    found, five = [], []
    for before, row in pairwise(rows):
        decoding = row[1] if not row[2] and (row[1] or 0) >= max(row[3], 1) else None
        if five and five[0][0] != decoding:
            five = []
        if decoding is not None:
            five.append((decoding, (row[0] - before[0]) / 1e6))
        if len(five) == 5:
            found.append((decoding, sum(ms for _, ms in five) / 5))
            five = []
    return found


def quantiles(folder: Path) -> tuple[int, int, list[float]]:
    """Commonest number of decoding requests, its steps, the 10th, 50th and 90th percentile of the fives in ms."""
    fives = decode_fives(folder)
    ((decoding, count),) = Counter(level for level, _ in fives).most_common(1)
    return decoding, 5 * count, list(np.percentile([ms for level, ms in fives if level == decoding], [10, 50, 90]))


def stalled_s(folder: Path) -> float:
    """Seconds over 1.02 times the 10th percentile of the fives, by decoding requests."""
    levels: dict[int, list[float]] = {}
    for level, ms in decode_fives(folder):
        levels.setdefault(level, []).append(ms)
    groups = [np.array(times) for times in levels.values() if len(times) >= 20]
    return 5 * float(sum(np.maximum(0, times - 1.02 * np.percentile(times, 10)).sum() for times in groups)) / 1e3


def records(root: Path, name: str) -> list[dict[str, Any]]:
    database = root.with_suffix(".duckdb")
    load(root, database)
    with connect(database) as con:
        table = next(t for t in read_tables(con) if t.name == name)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_the_figures_are_those_of_the_traces(tmp_path: Path) -> None:
    root = make_store.recorded_store(tmp_path / "r")
    rows = records(root, "09_pace")
    assert {row["arm"] for row in rows} == {"graphs", "eager", "graphs_kv_matched", "compile_only"}
    for row in rows:
        decoding, count, (p10, p50, p90) = quantiles(root / "runs" / f"32b.{row['arm']}.sustained.r1.p1a1")
        assert (row["decoding"], row["decode_steps"]) == (str(decoding), str(count))
        found = [float(row[name]["mean"]) for name in ("p10_ms", "p50_ms", "p90_ms")]
        assert found == pytest.approx([p10, p50, p90], abs=0.006)
        assert row["p10_ms"]["n"] == 1
        assert float(row["greatest_p90_over_p10"]) == pytest.approx(p90 / p10, abs=0.006)


def test_what_is_taken_off_is_that_of_the_traces(tmp_path: Path) -> None:
    root = make_store.recorded_store(tmp_path / "r")
    rows = {row["arm"]: row for row in records(root, "09_stalls")}
    computed = {}
    for arm, row in rows.items():
        folder = root / "runs" / f"32b.{arm}.sustained.r1.p1a1"
        bench = json.loads((folder / "bench.json").read_text())
        computed[arm] = bench["total_output_tokens"] / (bench["duration"] - stalled_s(folder))
        assert float(row["computed_tok_s"]) == pytest.approx(computed[arm], abs=0.06)
        assert float(row["taken_off_pct"]) == pytest.approx(100 * stalled_s(folder) / bench["duration"], abs=0.06)
    assert float(rows["graphs"]["computed_ratio"]) == pytest.approx(computed["graphs"] / computed["eager"], abs=0.0006)


def shifted(root: Path, shift_ns: str) -> dict[str, dict[str, Any]]:
    """The tables of the stalls, before and after the moments of a run with graphs are moved: SQL on step and t_ns."""
    before = {row["arm"]: row for row in records(root, "09_stalls")}["graphs"]
    steps = root / "runs/32b.graphs.sustained.r1.p1a1/steps.parquet"
    con = duckdb.connect()
    con.execute(f"CREATE TABLE t AS SELECT *, lead(t_ns) OVER (ORDER BY step) - t_ns AS gap FROM '{steps}'")
    con.execute(f"UPDATE t SET t_ns = t_ns + {shift_ns}")
    con.execute(f"COPY (SELECT * EXCLUDE gap FROM t ORDER BY step) TO '{steps}' (FORMAT parquet)")
    record = json.loads((steps.parent / "run.json").read_text())
    record["files_sha256"]["steps.parquet"] = hashlib.sha256(steps.read_bytes()).hexdigest()
    (steps.parent / "run.json").write_text(json.dumps(record))
    return {"before": before, "after": {row["arm"]: row for row in records(root, "09_stalls")}["graphs"]}


def test_a_run_that_stalls_has_more_taken_off(tmp_path: Path) -> None:
    """Ten steps take 5 ms more, the next ten as much less, and so on."""
    root = make_store.recorded_store(tmp_path / "r")
    late = "5000000 * least(step % 20, 20 - step % 20)"
    run = shifted(root, f"CASE WHEN step BETWEEN 200 AND 2000 THEN {late} ELSE 0 END")
    assert float(run["before"]["taken_off_pct"]) < 2
    assert float(run["after"]["taken_off_pct"]) > 7


def test_moments_that_are_late_now_and_then_take_nothing_off(tmp_path: Path) -> None:
    """Every second moment is 8 ms late: single steps look like 28 and 12 ms, five in a row hardly change."""
    root = make_store.recorded_store(tmp_path / "r")
    run = shifted(root, "CASE WHEN step % 2 = 1 AND gap > 9000000 THEN 8000000 ELSE 0 END")
    assert float(run["after"]["taken_off_pct"]) < 4  # of single steps it would be over 20


def test_a_step_that_reads_a_prompt_and_the_one_before_it_are_no_decode_steps(tmp_path: Path) -> None:
    """No token of a preempted request that is read in anew is a first one, so prompt_tokens says 0 of it."""
    root = make_store.recorded_store(tmp_path / "r")
    records(root, "09_stalls")
    with connect(root.with_suffix(".duckdb")) as con:
        rows = con.execute("""SELECT prompt_tokens = 0 AND generated_tokens > 0 AND unpadded_tokens <= generated_tokens,
            d.step IS NOT NULL FROM window_steps s LEFT JOIN decode_steps d USING (folder, step)
            WHERE folder = '32b.graphs.sustained.r1.p1a1' ORDER BY s.step""").fetchall()
        anew = con.execute("""SELECT count(*) FROM window_steps WHERE folder = '32b.graphs.sustained.r1.p1a1'
            AND prompt_tokens = 0 AND generated_tokens > 0 AND unpadded_tokens > generated_tokens""").fetchone()
    assert anew is not None
    assert anew[0] > 10
    wanted = [bool(decodes and next_decodes) for (decodes, _), (next_decodes, _) in pairwise(rows)]
    assert [timed for _, timed in rows] == [False, *wanted[1:], False]
