"""Engine steps against KV blocks as the scheduling model has them, for every cell in which a request waited
and for the pools that the published study's figures imply.

The model gets the lengths of a run's own requests and the cell's concurrency; no time and no measured step enters it.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb

from analysis.processes import Each, spread
from analysis.scheduling import Prediction, SchedulerConfig, SchedulingError, predict

_CURVE_POINTS = 24
_JUMP_BLOCKS, _JUMP_SHARE = 4, 0.01  # two points further apart, in blocks and in steps, get one between them
_MARGIN = 0.09  # of the blocks measured, beyond the least and the greatest
_CELLS = Path(__file__).with_name("staircase.sql")


def add_staircase(con: duckdb.DuckDBPyConnection) -> None:
    """Fill `model_steps`: each measured count of blocks of a size and, where the pool is too small for the load, a
    curve, finer at its jumps."""
    cells = con.execute(_CELLS.read_text(encoding="utf-8")).fetchall()
    with spread(len(con.table("attempts"))) as each:
        rows = [row for cell in cells for row in _curve(each, *cell)]
    if rows:  # none where no request fits
        con.executemany("INSERT INTO model_steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def _curve(each: Each, *cell: Any) -> Iterator[tuple[Any, ...]]:
    """Of a row of staircase.sql, those of `model_steps`."""
    *name, size, curve, concurrency, context, budget, measured, lengths = cell
    block_need = concurrency * max(-(-sum(pair) // size) for pair in lengths)
    predicted = partial(_predict, tuple(lengths), concurrency, size, context or 4096, budget or 8192)
    points = set(measured)
    if curve and measured[0] <= block_need:
        low, high = round(measured[0] * (1 - _MARGIN)), round(measured[-1] * (1 + _MARGIN))
        points |= {*range(low, high, max((high - low) // _CURVE_POINTS, 1)), high}
    found: dict[int, Prediction | None] = {}
    while points:  # a pool that holds the whole load schedules like any other that does
        blocks = sorted(points)
        found |= zip(blocks, each(predicted, [min(n, block_need + 2) for n in blocks]), strict=True)
        points = {(a + b) // 2 for a, b in pairwise(sorted(found)) if curve and _is_jump(b - a, found[a], found[b])}
    for n, p in sorted(found.items()):
        if p:
            yield (*name, size, n, n not in measured, p.waiting_steps, p.mean_running, p.preempted)


def _is_jump(gap_blocks: int, left: Prediction | None, right: Prediction | None) -> bool:
    """Whether a point between two is wanted. No request of the load fits a pool without prediction."""
    steps = [p.waiting_steps for p in (left, right) if p and p.waiting_steps]
    return gap_blocks > _JUMP_BLOCKS and len(steps) == 2 and abs(steps[0] / steps[1] - 1) > _JUMP_SHARE


def _predict(
    lengths: tuple[tuple[int, int], ...], concurrency: int, size: int, context: int, budget: int, blocks: int
) -> Prediction | None:
    with suppress(SchedulingError):
        config = SchedulerConfig(blocks, size, max_model_len=context, max_num_batched_tokens=budget)
        return predict(config, lengths, concurrency)
    return None
