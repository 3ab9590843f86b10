"""What is done and what is left: pure functions from the plan and the records in the store."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from analysis.formats.run_record import RunRecord
from runner.plan import Block


@dataclass(frozen=True)
class Place:
    """Where runs happen: monotonic times and pairing hold only within one boot of one machine and one GPU."""

    machine_id: str
    gpu_uuid: str | None
    cache_id: str | None


def _hardware(record: RunRecord) -> tuple[str, str | None]:
    return record.machine_id, record.gpu.uuid if record.gpu else None


@dataclass(frozen=True)
class BlockState:
    """State of one block. `pass_number` is the pass to add to; `attempts` counts that pass's folders by arm."""

    block: Block
    status: Literal["done", "partial", "new"]
    pass_number: int
    valid_arms: frozenset[str] = frozenset()
    attempts: Mapping[str, int] = field(default_factory=dict)

    @property
    def missing_arms(self) -> tuple[str, ...]:
        return tuple(arm for arm in self.block.arms if arm not in self.valid_arms)


def block_state(block: Block, records: Iterable[RunRecord], place: Place | None) -> BlockState:
    """Where `block` stands. A pass counts as done only if every arm has a valid run in it.

    A pass begun on other hardware (or with another set of arms) is left as it is and the block starts the next
    pass; `place` None (only looking) continues the latest pass whatever its machine.
    """
    passes: dict[int, list[RunRecord]] = {}
    for record in records:
        if record.kind == "run" and record.block_id == block.block_id:
            passes.setdefault(record.pass_number, []).append(record)
    if not passes:
        return BlockState(block, "new", 1)
    wanted = frozenset(block.arms)
    for number in sorted(passes, reverse=True):
        valid = [r for r in passes[number] if r.status == "valid"]
        if wanted <= {r.arm for r in valid} and len({_hardware(r) for r in valid}) == 1:
            return BlockState(block, "done", number, wanted)
    latest = max(passes)
    runs = passes[latest]
    here = place is None or all(_hardware(r) == (place.machine_id, place.gpu_uuid) for r in runs)
    if not here or any(set(r.block_arms) != wanted for r in runs):
        return BlockState(block, "new", latest + 1)
    attempts = {arm: max((r.attempt for r in runs if r.arm == arm), default=0) for arm in block.arms}
    return BlockState(block, "partial", latest, frozenset(r.arm for r in runs if r.status == "valid"), attempts)


def primes_needed(records: Sequence[RunRecord], place: Place, model: str, arms: Sequence[str]) -> list[str]:
    """Which of `arms` must be started once, unmeasured, before runs of `model` can start warm here.

    An arm whose compile cache is not filled; and on a machine that has started no engine yet (its files are still
    to be read from disk) at least one. The cache may be carried over from another machine: its identity goes with it.
    """
    starts = [r for r in records if r.status == "valid"]
    filled = {(r.model, r.arm) for r in starts if r.kind == "prime" and r.cache_id == place.cache_id}
    cold = [arm for arm in dict.fromkeys(arms) if (model, arm) not in filled]
    machine_warm = any(r.machine_id == place.machine_id for r in starts)
    return cold if cold or machine_warm else list(arms)[:1]


def measured_primes(records: Iterable[RunRecord], model: str) -> dict[str, RunRecord]:
    """By arm, the campaign's earliest valid prime of `model` that profiled how many KV blocks the arm has by nature.

    The earliest counts for the whole campaign, so that an arm has exactly the same pool in all its blocks.
    """
    primes: dict[str, RunRecord] = {}
    for record in sorted(records, key=lambda r: (r.wall_start, r.folder)):
        if (record.kind, record.model, record.status) == ("prime", model, "valid") and record.num_gpu_blocks_natural:
            primes.setdefault(record.arm, record)
    return primes


def duration_s(record: RunRecord) -> float | None:
    """Seconds from the run's begin to its end, None if it has no end."""
    if record.timeline.run_end_ns is None:
        return None
    return (record.timeline.run_end_ns - record.timeline.run_begin_ns) / 1e9


def typical_s(
    records: Sequence[RunRecord], kind: str, model: str, arm: str, profile: str | None, guess_s: float
) -> float:
    """Median duration of this cell's valid runs so far, in seconds; `guess_s` while there is none."""
    cell = (kind, model, arm, profile, "valid")
    valid = [r for r in records if (r.kind, r.model, r.arm, r.profile, r.status) == cell]
    seen = [seconds for record in valid if (seconds := duration_s(record)) is not None]
    return median(seen) if seen else guess_s
