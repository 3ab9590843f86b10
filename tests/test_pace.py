"""How steady a decode step was: the table against the same figures computed in Python from the recorded step traces."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pytest

from analysis.db import connect, read_tables
from analysis.load import load
from tests import make_store


def quantiles(folder: Path) -> tuple[int, int, list[float]]:
    """Commonest running count, its decode steps, their 10th, 50th and 90th percentile in ms."""
    record = (folder / "run.json").read_text(encoding="utf-8")
    begin, end = (int(record.split(f'"{name}": ')[1].split(",")[0]) for name in ("window_begin_ns", "bench_exit_ns"))
    rows = duckdb.sql(
        f"SELECT t_ns, running, prompt_tokens, generated_tokens FROM '{folder}/steps.parquet' ORDER BY step"
    ).fetchall()
    rows = [row for row in rows if begin <= row[0] <= end]
    decode = [(row[1], (row[0] - before[0]) / 1e6) for before, row in pairwise(rows) if not row[2] and row[3]]
    ((running, count),) = Counter(level for level, _ in decode).most_common(1)
    return running, count, list(np.percentile([ms for level, ms in decode if level == running], [10, 50, 90]))


def test_the_figures_are_those_of_the_traces(tmp_path: Path) -> None:
    root = make_store.recorded_store(tmp_path / "r")
    load(root, tmp_path / "d.duckdb")
    with connect(tmp_path / "d.duckdb") as con:
        table = next(t for t in read_tables(con) if t.name == "09_pace")
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert {row["arm"] for row in rows} == {"graphs", "eager", "graphs_kv_matched", "compile_only"}
    for row in rows:
        running, count, (p10, p50, p90) = quantiles(root / "runs" / f"32b.{row['arm']}.sustained.r1.p1a1")
        assert (row["running"], row["steps"]) == (str(running), str(count))
        found = [float(row[name]["mean"]) for name in ("p10_ms", "p50_ms", "p90_ms")]
        assert found == pytest.approx([p10, p50, p90], abs=0.006)
        assert row["p10_ms"]["n"] == 1
        assert float(row["slowest_run"]) == pytest.approx(p90 / p10, abs=0.006)
