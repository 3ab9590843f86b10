"""The campaign's loop: primes and blocks in the plan's order, resumed from what the store already holds."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from analysis.formats.run_record import RunRecord
from runner.config import Config
from runner.display import Display, Tally
from runner.errors import PreflightError, StoreError
from runner.launcher import EngineHost, kill_orphans, marker_for
from runner.nvml import Gpu
from runner.plan import Block, Plan, PrimeSpec, RunSpec, pinned_blocks, resolve_flags, run_estimate_s
from runner.progress import BlockState, Place, block_state, measured_blocks, prime_attempts, primes_needed, typical_s
from runner.run import RunContext, Stopped, execute_run
from runner.store import Kind, Store, write_atomic

EXIT_OK, EXIT_SOME_FAILED, EXIT_OUT_OF_TIME = 0, 3, 4
# what no retry can mend: the next run would fail, or be disturbed, in the same way
MACHINE_FAILURES = frozenset(
    {"gpu_busy", "gpu_memory_not_freed", "gpu_lost", "telemetry_lost", "engine_version", "driver_mismatch"}
)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Summary:
    """How a `campaign run` ended. `exit_code`: 0 all done, 3 some blocks could not be completed, 4 out of time budget,
    128 + signal when stopped."""

    exit_code: int
    runs_done: int
    runs_failed: int
    runs_left: int
    message: str


class StopFlag:
    """Set by SIGINT or SIGTERM. A second signal raises KeyboardInterrupt in whatever is going on."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signum: int | None = None

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.event.is_set():
            raise KeyboardInterrupt
        self.signum = signum
        self.event.set()

    @contextmanager
    def installed(self) -> Iterator[StopFlag]:
        previous = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def machine_id() -> str:
    """This boot of this machine: CLOCK_MONOTONIC readings compare only within it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def cache_identity(cache: Path) -> str:
    """The identity of a compile-cache folder, made on first use: an emptied folder gets a new one and is primed anew."""
    path = cache / "cache-id"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomic(path, uuid.uuid4().hex[:12] + "\n")
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise StoreError(
            f"cannot use the cache folder {cache}: {error.strerror}", "give a writable one with --cache"
        ) from error


class Campaign:
    """One sitting: everything that `campaign run` does between opening the store and its summary."""

    def __init__(
        self,
        config: Config,
        plan: Plan,
        store: Store,
        host: EngineHost,
        gpu: Gpu | None,
        display: Display,
        provenance: Callable[[], dict[str, Any]],
        *,
        time_budget_s: float | None = None,
        primes_only: bool = False,
        stop: StopFlag | None = None,
        execute: Callable[[RunContext], RunRecord] = execute_run,
    ) -> None:
        self.config, self.plan, self.store, self.host, self.gpu, self.display = config, plan, store, host, gpu, display
        self._provenance = provenance
        self.stop = stop or StopFlag()
        self._execute = execute
        self._begun = time.monotonic()
        self._budget_s = time_budget_s
        self._primes_only = primes_only
        self.place = Place(machine_id(), gpu.identity().uuid if gpu else None, cache_identity(host.cache))
        self.sitting_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"
        self.records: list[RunRecord] = []
        self._failed = 0
        self._hopeless: set[PrimeSpec] = set()  # failed in this sitting, after retries

    # -- estimates -------------------------------------------------------------------------------------------------

    def _run_s(self, model: str, arm: str, profile: str) -> float:
        return typical_s(self.records, "run", model, arm, profile, run_estimate_s(self.config, model, profile))

    def _prime_s(self, prime: PrimeSpec) -> float:
        return typical_s(self.records, "prime", prime.model, prime.arm, None, prime.estimate_s)

    def _primes_needed(self, state: BlockState) -> list[PrimeSpec]:
        """First starts that must come before the missing runs of a block."""
        if not state.missing_arms:
            return []
        specs = {prime.arm: prime for prime in self.plan.primes_for(state.block, self.config)}
        return [specs[arm] for arm in primes_needed(self.records, self.place, state.block.model, list(specs))]

    def _cost_s(self, state: BlockState) -> float:
        block, arms = state.block, state.missing_arms
        return sum(map(self._prime_s, self._primes_needed(state))) + sum(
            self._run_s(block.model, arm, block.profile) for arm in arms
        )

    def _left_s(self) -> float:
        return float("inf") if self._budget_s is None else self._budget_s - (time.monotonic() - self._begun)

    def _tally(self) -> Tally:
        states = [block_state(block, self.records, self.place) for block in self.plan.blocks]
        tally = Tally(failed=self._failed)
        primes: set[PrimeSpec] = set()
        for state in states:
            tally.done += len(state.valid_arms)
            tally.left += len(state.missing_arms)
            tally.left_s += sum(self._run_s(state.block.model, arm, state.block.profile) for arm in state.missing_arms)
            primes.update(self._primes_needed(state))
        tally.left += len(primes)
        tally.left_s += sum(map(self._prime_s, primes))
        return tally

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> Summary:
        """Do all that is left and fits. Raises StoreError (disk) and PreflightError (machine); runs that fail are recorded."""
        for pid in kill_orphans(self.store.process_mark):
            self.display.note(f"ended process {pid}, left over by an earlier crash of this campaign")
        for path in self.store.sweep():
            self.display.note(f"half-written folder moved to {path}; that run is done again")
        self.records = self.store.records()
        if all(block_state(b, self.records, self.place).status == "done" for b in self.plan.blocks):
            return self._summary(EXIT_OK, "every block of the plan is complete")
        self.store.write_sitting(self.sitting_id, self._provenance())
        out_of_time: list[str] = []
        incomplete: list[str] = []
        work = self._fill_caches if self._primes_only else self._run_blocks
        try:
            work(out_of_time, incomplete)
        except Stopped:
            signum = self.stop.signum or signal.SIGINT
            return self._summary(128 + signum, f"stopped by {signal.Signals(signum).name}; start again to go on")
        if incomplete:
            return self._summary(
                EXIT_SOME_FAILED,
                f"not completed after retries: {', '.join(incomplete)}; see run.json of the failed runs",
            )
        if out_of_time:
            return self._summary(EXIT_OUT_OF_TIME, f"time budget used up; left: {', '.join(out_of_time)}")
        return self._summary(
            EXIT_OK, "every first start is done" if self._primes_only else "every block of the plan is complete"
        )

    def _run_blocks(self, out_of_time: list[str], incomplete: list[str]) -> None:
        for block in self.plan.blocks:
            state = block_state(block, self.records, self.place)
            if state.status == "done":
                continue
            if not self._fits(block.block_id, self._cost_s(state)):
                out_of_time.append(block.block_id)
            elif not self._run_block(state):
                incomplete.append(block.block_id)

    def _fill_caches(self, out_of_time: list[str], incomplete: list[str]) -> None:
        """The first starts that the plan's blocks will need, and nothing else."""
        for prime in self.plan.primes:
            if prime.arm not in primes_needed(self.records, self.place, prime.model, [prime.arm]):
                continue
            if not self._fits(prime.prime_id, self._prime_s(prime)):
                out_of_time.append(prime.prime_id)
            elif not self._prime(prime):
                incomplete.append(prime.prime_id)

    def _fits(self, what: str, cost_s: float) -> bool:
        """Whether `what` can finish within the time budget; says so if it cannot."""
        if cost_s <= self._left_s():
            return True
        self.display.note(f"{what}: needs about {cost_s:.0f} s, {max(0.0, self._left_s()):.0f} s left: not started")
        return False

    def _summary(self, code: int, message: str) -> Summary:
        tally = self._tally()
        return Summary(code, tally.done, tally.failed, tally.left, message)

    def _run_block(self, state: BlockState) -> bool:
        """Prime what is needed, then the missing arms in order. False: the block is not complete."""
        block = state.block
        for prime in self._primes_needed(state):
            if prime in self._hopeless or not self._prime(prime):
                self._hopeless.add(prime)
                self.display.note(f"{block.block_id}: skipped, the first start {prime.prime_id} failed")
                return False
        complete = True
        for spec in block.runs():
            if spec.arm in state.missing_arms:
                complete &= self._attempts(spec, block, state)
        return complete

    def _prime(self, prime: PrimeSpec) -> bool:
        for _ in range(1 + self.config.engine.retries):
            number = prime_attempts(self.records, prime.prime_id) + 1
            context = self._context("prime", prime.prime_id, prime.model, prime.arm, prime.flags, number, 1)
            if self._one(context).status == "valid":
                return True
        return False

    def _attempts(self, spec: RunSpec, block: Block, state: BlockState) -> bool:
        first = state.attempts.get(spec.arm, 0) + 1
        measured = {arm: n for (model, arm), n in measured_blocks(self.records).items() if model == spec.model}
        flags = resolve_flags(self.config, spec.model, spec.arm, measured)
        pinned = pinned_blocks(self.config, spec.model, spec.arm, measured)
        for attempt in range(first, first + 1 + self.config.engine.retries):
            context = self._context(
                "run", spec.run_id, spec.model, spec.arm, flags, state.pass_number, attempt, spec, block, pinned
            )
            if self._one(context).status == "valid":
                return True
        return False

    def _context(
        self,
        kind: Kind,
        run_id: str,
        model: str,
        arm: str,
        flags: Sequence[str],
        pass_number: int,
        attempt: int,
        spec: RunSpec | None = None,
        block: Block | None = None,
        pinned: int | None = None,
    ) -> RunContext:
        folder = f"{run_id}.p{pass_number}a{attempt}"
        return RunContext(
            kind=kind,
            run_id=run_id,
            folder=folder,
            campaign=self.config.campaign.name,
            model=model,
            arm=arm,
            profile=spec.profile if spec else None,
            repetition=spec.repetition if spec else None,
            block_id=block.block_id if block else None,
            block_arms=block.arms if block else (),
            order_in_block=spec.order_in_block if spec else None,
            seed=spec.seed if spec else None,
            pass_number=pass_number,
            attempt=attempt,
            sitting_id=self.sitting_id,
            machine_id=self.place.machine_id,
            cache_id=self.place.cache_id,
            config=self.config,
            host=self.host,
            gpu=self.gpu,
            arm_flags=tuple(flags),
            pinned_blocks=pinned,
            directory=self.store.begin(kind, folder),
            marker=marker_for(self.store.process_mark, folder),
            on_phase=self.display.phase,
            stop_requested=self.stop.event,
        )

    def _one(self, context: RunContext) -> RunRecord:
        """One attempt, from the empty folder to the committed one."""
        if self.stop.event.is_set():
            raise Stopped
        self.display.begin(context.folder, self._tally())
        begun = time.monotonic()
        try:
            record = self._execute(context)
        except OSError as error:
            raise StoreError(
                f"{context.folder}: {error.strerror or error}" + (f" ({error.filename})" if error.filename else ""),
                "mend the cause (full disk?), then start the campaign again; finished runs are kept",
            ) from error
        self.store.commit(context.directory)
        self.records.append(record)
        if record.status != "valid":
            self._failed += 1
        self.display.finished(record, time.monotonic() - begun, self._tally())
        if record.failure_class in MACHINE_FAILURES:
            raise PreflightError(
                f"{record.folder}: {record.failure_message}",
                "mend the machine, then start the campaign again; finished runs are kept",
            )
        return record


def run_campaign(campaign: Campaign) -> Summary:
    """`Campaign.run` with signals handled and the display closed at the end, however it ends."""
    try:
        with campaign.stop.installed():
            return campaign.run()
    finally:
        campaign.display.close()
