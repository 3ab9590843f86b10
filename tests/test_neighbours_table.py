"""What a busy neighbour does: runs beside another GPU's against runs alone on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.db import connect, read_tables
from analysis.formats.run_record import GpuIdentity
from analysis.load import load
from tests import make_store
from tests.test_plain_loop import write_loop

OTHER_GPU = GpuIdentity(index=1, uuid="GPU-2", name="NVIDIA H200", memory_total_mib=143771)


def rows(
    root: Path, alone: int, beside: int, slower: float, monkeypatch: pytest.MonkeyPatch, loop_gpu: str | None = None
) -> list[dict[str, Any]]:
    """7b eager, so many runs alone and so many while the other GPU runs the 32b; these `slower` by a factor.
    With a plain loop on a GPU during the first three."""
    make_store.write_header(root)
    monkeypatch.setattr("random.Random.uniform", lambda _self, low, high: (low + high) / 2)
    for repetition in range(1, alone + beside + 1):
        late = repetition > alone
        monkeypatch.setitem(make_store.SPEED, "eager", 1.08 * (slower if late else 1) * (1 + repetition % 2 / 1000))
        begin = 1000.0 * repetition
        make_store.synthetic_run(root, "7b", "eager", "sustained", repetition, ("eager",), begin=begin)
        if late:  # of the same boot and at the same time
            more = {"begin": begin, "gpu": OTHER_GPU}
            make_store.synthetic_run(root, "32b", "graphs", "sustained", repetition, ("graphs",), **more)
    if loop_gpu:
        write_loop(root, 100.0, gpu_uuid=loop_gpu)
    load(root, root.with_name(root.name + ".duckdb"))
    with connect(root.with_name(root.name + ".duckdb")) as con:
        found = next(t for t in read_tables(con) if t.name == "15_neighbours")
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


@pytest.mark.parametrize(
    ("alone", "beside", "slower", "verdict"),
    [
        (2, 2, 1.0, "less than 1%"),
        (3, 3, 3.0, "more than 1%"),
        (2, 2, 1.15, "not resolved"),
        (1, 1, 1.0, "needs two runs of each kind"),
    ],
)
def test_the_verdict_is_that_of_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: int, beside: int, slower: float, verdict: str
) -> None:
    (row,) = rows(tmp_path, alone, beside, slower, monkeypatch)
    assert (row["alone"], row["beside"], row["verdict"]) == (alone, beside, verdict), row
    assert (row["moved_pct"] is None) == (verdict == "needs two runs of each kind")


def test_a_plain_loop_on_the_other_gpu_is_a_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = rows(tmp_path / "other", 5, 0, 1.0, monkeypatch, OTHER_GPU.uuid)
    assert (row["alone"], row["beside"]) == (2, 3), row
    assert rows(tmp_path / "same", 5, 0, 1.0, monkeypatch, make_store.H200.uuid) == []


def test_without_both_kinds_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows(tmp_path, 2, 0, 1.0, monkeypatch) == []
