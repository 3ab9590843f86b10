"""Engine steps against KV blocks as the scheduling model has them, for every cell in which a request waited
and for the pools that the published study's figures imply.

The model gets the lengths of a run's own requests and the cell's concurrency; no time and no measured step enters it.
"""

from __future__ import annotations

from functools import lru_cache

import duckdb

from analysis.scheduling import SchedulerConfig, SchedulingError, simulate, summarise

_CURVE_POINTS = 12
_MARGIN = 0.09  # of the blocks measured, beyond the least and the greatest
_CELLS = """
    SELECT setup, model, profile, true AS curve, any_value(concurrency), any_value(max_model_len),
           any_value(max_num_batched_tokens), list(DISTINCT num_gpu_blocks ORDER BY num_gpu_blocks),
           any_value(lengths ORDER BY repetition, folder)
    FROM runs JOIN run_figures USING (folder)
    JOIN (
        SELECT folder, list((q.input_tokens, q.output_tokens) ORDER BY request) AS lengths
        FROM requests q GROUP BY folder
    ) USING (folder)
    WHERE steps IS NOT NULL AND num_gpu_blocks IS NOT NULL AND concurrency > 1 GROUP BY ALL
    UNION ALL SELECT 'published study', '32b', 'sustained', false, 64, 4096, 8192, blocks,
           list_transform(range(500), lambda i: (1024, 128)) FROM published_pools
    ORDER BY ALL
"""


def add_staircase(con: duckdb.DuckDBPyConnection) -> None:
    """Fill `model_steps`: each measured block count and, where the pool is too small for the load, a curve."""
    for setup, model, profile, curve, concurrency, context, budget, measured, lengths in con.execute(_CELLS).fetchall():
        block_need = concurrency * max(-(-sum(pair) // 16) for pair in lengths)
        low, high = round(measured[0] * (1 - _MARGIN)), round(measured[-1] * (1 + _MARGIN))
        step = max((high - low) // (_CURVE_POINTS - 1), 1)
        between = range(low, high + 1, step) if curve and measured[0] <= block_need else range(0)
        for blocks in sorted({*between, *measured}):
            pool = min(blocks, block_need + 2)  # one that holds the whole load schedules like any other that does
            try:
                found = _steps(tuple(lengths), concurrency, context or 4096, budget or 8192, pool)
            except SchedulingError:
                continue  # no request of the load fits this pool
            row = [setup, model, profile, blocks, blocks not in measured, *found]
            con.execute("INSERT INTO model_steps VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


@lru_cache(maxsize=256)
def _steps(
    lengths: tuple[tuple[int, int], ...], concurrency: int, context: int, budget: int, blocks: int
) -> tuple[int | None, float | None, int]:
    """Steps and mean running of the waiting span, preemptions."""
    config = SchedulerConfig(blocks, max_model_len=context, max_num_batched_tokens=budget)
    found = summarise(simulate(config, lengths, concurrency))
    return found.waiting_steps, found.mean_running, found.preempted
