"""The scheduling model fed the arrivals that a recorded step trace shows, row by row."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence

from analysis.formats.steps import StepRow
from analysis.scheduling import Prediction, Scheduler, SchedulerConfig, Step, closed_loop, summary

PROMPT, OUTPUT = 120, 300


def small_pool(asynchronous: bool = False) -> SchedulerConfig:
    """The CPU engine's case: 12 blocks of 128 tokens."""
    return SchedulerConfig(
        12, block_size=128, max_num_batched_tokens=2048, max_model_len=512, asynchronous=asynchronous
    )


def simulate(
    config: SchedulerConfig, lengths: Iterable[tuple[int, int]], concurrency: int, client_lag_steps: int = 1
) -> list[Step]:
    """Every step of a closed loop, none skipped."""
    return [step for step, _ in closed_loop(config, lengths, concurrency, client_lag_steps, skip=False)]


def summarise(steps: Iterable[Step]) -> Prediction:
    return summary((step, 1) for step in steps)


def replay(rows: Sequence[StepRow]) -> tuple[int, int, int]:
    """Of a trace of PROMPT/OUTPUT-token requests: (rows that differ, requests, preemptions predicted)."""
    scheduler = Scheduler(small_pool())
    generated: Counter[str] = Counter()
    sent = differing = in_system = preempted = 0
    for row in rows:
        assert row.running is not None
        assert row.waiting is not None
        about_to_end = any(count == OUTPUT - 1 for count in generated.values())
        ending = copy.deepcopy(scheduler).step() if about_to_end else None
        arrivals = row.running + row.waiting - in_system + (len(ending.finished) if ending else 0)
        for _ in range(arrivals):
            scheduler.add(str(sent), PROMPT, OUTPUT)
            sent += 1
        step = scheduler.step()
        if step is None:  # the engine reports an idle step, the model has none
            differing += row.generated_tokens is not None
            continue
        generated.update(step.emitted)
        in_system = step.running + step.waiting
        preempted += step.preempted
        differing += (
            step.running, step.waiting, round(step.kv_usage, 4), step.preempted, step.prompt_tokens,
            step.generated_tokens, step.unpadded_tokens,
        ) != (
            row.running, row.waiting, row.kv_usage and round(row.kv_usage, 4), row.preempted or 0, row.prompt_tokens,
            row.generated_tokens, row.unpadded_tokens,
        )  # fmt: skip
    return differing, sent, preempted
