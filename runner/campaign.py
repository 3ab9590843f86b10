"""The campaign's loop: primes and blocks in the plan's order, resumed from what the store already holds."""

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from analysis import gates, gates_campaign
from analysis.formats.failure import FAILURES
from analysis.formats.run_record import RunIdentity, RunRecord
from analysis.gate import Then
from analysis.validate import Verdict, with_campaign_gates
from runner.config import Config, config_fingerprint
from runner.config_checks import BLOCKS_FLAG, flag_values
from runner.context import RunContext
from runner.display import Display, Tally
from runner.errors import PreflightError, StoreError
from runner.launcher import EngineHost
from runner.memory import check_override
from runner.nvml import Gpu
from runner.plan import Plan, PrimeSpec, RunSpec, prime_for, resolve_flags, run_estimate_s
from runner.progress import BlockState, Place, block_state, measured_primes, primes_needed, typical_s
from runner.provenance import collect_provenance
from runner.run import execute_run
from runner.signals import STOP_SIGNALS, StopRequest
from runner.store import Store, read_records, write_atomic
from runner.watch import Stopped

EXIT_OK, EXIT_SOME_FAILED, EXIT_OUT_OF_TIME = 0, 3, 4
GATES = {gate.code: gate for gate in (*gates.GATES, *gates_campaign.GATES)}
TOGETHER = {gate.code for gate in gates_campaign.GATES}
SEVEREST = ("stop", "give_up", "retry")
CALM_S = 5.0
Work = Iterator[tuple[str, float, Callable[[], bool]]]  # name, expected seconds, what does it (False: not completed)


def after_failure(record: RunRecord) -> Then:
    """What a run that is not valid lets do: try it again, leave it, or end the campaign."""
    if record.failure_class in FAILURES:
        return FAILURES[record.failure_class].then
    found = (GATES[r.code].then for r in record.reasons if r.severity == "invalid" and r.code in GATES)
    return min(found, key=SEVEREST.index, default="retry")


def does_not_fit(record: RunRecord) -> bool:
    """A gate on several runs made it invalid: another attempt of it alone mends nothing."""
    return any(r.severity == "invalid" and r.code in TOGETHER for r in record.reasons)


def why(record: RunRecord) -> str:
    """Of a run that is not valid, in one line."""
    told = "; ".join(f"{r.code}: {r.evidence} ({r.advice})" for r in record.reasons if r.severity == "invalid")
    return record.failure_message or told or record.status


@dataclass(frozen=True)
class Summary:
    """How a `campaign run` ended. `exit_code`: 0 all done, 3 some blocks could not be completed, 4 out of time budget,
    128 + signal when stopped."""

    exit_code: int
    runs_done: int
    runs_failed: int
    runs_left: int
    message: str


@contextmanager
def handling_stops(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """SIGINT and SIGTERM go to `handler` meanwhile."""
    previous = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


class StopFlag:
    """Set by SIGINT or SIGTERM. A second signal raises KeyboardInterrupt in whatever is going on; for a while after,
    others do nothing, so that its clean-up is not interrupted as well."""

    def __init__(self) -> None:
        self.event = StopRequest()
        self.signum: int | None = None
        self._calm_until = 0.0

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if not self.event.is_set():
            self.signum = signum
            self.event.set()
        elif time.monotonic() > self._calm_until:
            self._calm_until = time.monotonic() + CALM_S
            raise KeyboardInterrupt

    def installed(self) -> AbstractContextManager[None]:
        return handling_stops(self._handle)


def machine_id() -> str:
    """This boot of this machine: CLOCK_MONOTONIC readings compare only within it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def cache_identity(cache: Path) -> str:
    """The identity of a compile-cache folder, made on first use: an emptied folder gets a new one, and new primes."""
    path = cache / "cache-id"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomic(path, uuid.uuid4().hex[:12] + "\n")
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise StoreError(
            f"cannot use the cache folder {cache}: {error.strerror}", "give another with --cache"
        ) from error


class Campaign:
    """One sitting: everything that `campaign run` does between opening the store and its summary.

    `worker`: one of several in this store, after their parent has done the first starts.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        store: Store,
        host: EngineHost,
        gpu: Gpu | None,
        display: Display,
        *,
        time_budget_s: float | None = None,
        primes_only: bool = False,
        worker: bool = False,
        stop: StopFlag | None = None,
        execute: Callable[[RunContext], RunRecord] = execute_run,
    ) -> None:
        self.config, self.plan, self.store, self.host, self.gpu, self.display = config, plan, store, host, gpu, display
        self._primes_only, self._worker, self._execute = primes_only, worker, execute
        self.stop = stop or StopFlag()
        self._deadline = float("inf") if time_budget_s is None else time.monotonic() + time_budget_s
        self.place = Place(machine_id(), gpu.identity().uuid if gpu else None, cache_identity(host.cache))
        self.sitting_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"
        self._written: list[RunRecord] = []  # in the store
        self._together: list[RunRecord] | None = None
        self._failed, self._judge = 0, f"`campaign validate {store.root}`"
        # failed in this sitting, after retries; a worker does none: those that are lacking have failed in its parent
        self._hopeless = set(plan.primes) if worker else set[PrimeSpec]()

    @property
    def records(self) -> list[RunRecord]:
        """All runs and primes, as they stand together: with the reasons of the gates on several runs."""
        if self._together is None:
            alone = [Verdict(Path(r.folder), r.status, r.reasons, r) for r in self._written]
            judged = with_campaign_gates(self.store.root, config_fingerprint(self.config), alone)
            changes = ({"status": verdict.status, "reasons": verdict.reasons} for verdict in judged)
            self._together = [r.model_copy(update=c) for r, c in zip(self._written, changes, strict=True)]
        return self._together

    # -- what is left, and how long it takes

    def _states(self) -> Iterator[BlockState]:
        for block in self.plan.blocks:
            state = block_state(block, self.records, self.place)
            if state.status != "done":
                yield state

    def _primes_needed(self, state: BlockState) -> list[PrimeSpec]:
        """First starts that must come before the missing runs of a block."""
        specs = {prime.arm: prime for prime in self.plan.primes_for(state.block, self.config)}
        return [specs[arm] for arm in primes_needed(self.records, self.place, state.block.model, list(specs))]

    def _runs_s(self, state: BlockState) -> float:
        model, profile = state.block.model, state.block.profile
        guess_s = run_estimate_s(self.config, model, profile)
        return sum(typical_s(self.records, "run", model, arm, profile, guess_s) for arm in state.missing_arms)

    def _prime_s(self, prime: PrimeSpec) -> float:
        return typical_s(self.records, "prime", prime.model, prime.arm, None, prime.estimate_s)

    def _tally(self) -> Tally:
        states = list(self._states())
        primes = {prime for state in states for prime in self._primes_needed(state)}
        left = sum(len(state.missing_arms) for state in states)
        return Tally(
            done=len(self.plan.runs) - left,
            failed=self._failed,
            left=left + len(primes),
            left_s=sum(map(self._runs_s, states)) + sum(map(self._prime_s, primes)),
        )

    # -- the loop

    def run(self) -> Summary:
        """Do all that is left and fits. Raises StoreError (disk) and PreflightError (machine)."""
        with self.stop.installed():
            try:
                return self._run()
            finally:
                self.display.close()

    def _run(self) -> Summary:
        if not self._worker:  # its parent has done this, and what is there now may be its neighbour's
            for left in self.host.end_leftovers(f"{self.store.process_mark}:"):
                self.display.note(f"ended {left}, left over by an earlier crash of this campaign")
            for moved in self.store.sweep():
                self.display.note(moved)
        self._written, _ = read_records(self.store.root)
        if next(self._states(), None) is None:
            return self._summary(EXIT_OK, "every block of the plan is complete")
        if self._primes_only and next(self._first_starts(), None) is None:
            return self._summary(EXIT_OK, "every first start is done")
        self.store.write_sitting(self.sitting_id, collect_provenance(self.config, self.host, self.gpu))
        out_of_time: list[str] = []
        incomplete: list[str] = []
        try:
            for name, cost_s, do in self._first_starts() if self._primes_only else self._blocks():
                left_s = max(0.0, self._deadline - time.monotonic())
                if cost_s > left_s:
                    self.display.note(f"{name}: needs about {cost_s:.0f} s, {left_s:.0f} s left: not started")
                    out_of_time.append(name)
                elif not do():
                    incomplete.append(name)
        except Stopped:
            signum = self.stop.signum or signal.SIGINT
            return self._summary(128 + signum, f"stopped by {signal.Signals(signum).name}; start again to go on")
        if incomplete:
            message = f"not completed after retries: {', '.join(incomplete)}; {self._judge} says why"
            return self._summary(EXIT_SOME_FAILED, message)
        if out_of_time:
            return self._summary(EXIT_OUT_OF_TIME, f"time budget used up; left: {', '.join(out_of_time)}")
        done = "every first start is done" if self._primes_only else "every block of the plan is complete"
        return self._summary(EXIT_OK, done)

    def _summary(self, code: int, message: str) -> Summary:
        tally = self._tally()
        return Summary(code, tally.done, tally.failed, tally.left, message)

    def _blocks(self) -> Work:
        for state in self._states():
            cost_s = self._runs_s(state) + sum(map(self._prime_s, self._primes_needed(state)))
            yield state.block.block_id, cost_s, partial(self._block, state)

    def _first_starts(self) -> Work:
        """The first starts that the blocks still to do will need, and nothing else."""
        for prime in self.plan.primes:
            if any(prime in self._primes_needed(state) for state in self._states()):
                yield prime.prime_id, self._prime_s(prime), partial(self._prime, prime)

    def _block(self, state: BlockState) -> bool:
        """Prime what is needed, then the missing arms in order. False: the block is not complete.

        A run may show that an earlier one of its block does not fit: then what is missing now is run, up to `retries`
        times.
        """
        for _ in range(1 + self.config.engine.retries):
            for prime in self._primes_needed(state):
                if prime in self._hopeless or not self._prime(prime):
                    self._hopeless.add(prime)
                    self.display.note(f"{state.block.block_id}: skipped, the first start {prime.prime_id} failed")
                    return False
            missing = [spec for spec in state.block.runs() if spec.arm in state.missing_arms]
            for spec in missing:
                self._attempts(spec, state)
            state = block_state(state.block, self.records, self.place)
            if state.status == "done":
                return True
            last = {r.arm: r for r in self.records if r.block_id == state.block.block_id}
            bad = [r for r in last.values() if r.status != "valid"]
            if not all(does_not_fit(r) and self._may_be_tried_again(r) for r in bad):
                return False
        return False

    def _prime(self, prime: PrimeSpec) -> bool:
        """The first start, tried again as often as the configuration says; each try is a pass of its own. Shards number
        theirs differently (K, K + N, …), so that their folders merge."""
        number, of = self.plan.shard
        before = max((r.pass_number for r in self.records if r.run_id == prime.prime_id), default=0)
        first = before + 1 + (number - before - 1) % of
        identity = {"kind": "prime", "run_id": prime.prime_id, "model": prime.model, "arm": prime.arm, "attempt": 1}
        return self._tries(identity, prime.flags, "pass_number", first, of)

    def _attempts(self, spec: RunSpec, state: BlockState) -> bool:
        """The run, tried again as often as the configuration says. PreflightError if its KV cache cannot fit."""
        primes = measured_primes(self.records, spec.model)
        measured = {arm: prime.num_gpu_blocks_natural or 0 for arm, prime in primes.items()}
        flags = resolve_flags(self.config, spec.model, spec.arm, measured)
        blocks = flag_values((*self.config.engine.flags, *flags), BLOCKS_FLAG)
        prime = primes.get(prime_for(self.config, spec.arm))
        if blocks and prime:
            check_override(self.config, self.gpu, int(blocks[0]), prime)
        identity = {"kind": "run", **asdict(spec), "pass_number": state.pass_number}
        return self._tries(identity, flags, "attempt", state.attempts.get(spec.arm, 0) + 1)

    def _tries(self, identity: dict[str, Any], flags: tuple[str, ...], counter: str, first: int, step: int = 1) -> bool:
        """Attempts, numbered by `counter` from `first`, until one is valid, no retry can help or none is left."""
        for number in range(first, first + step * (1 + self.config.engine.retries), step):
            record = self._one(identity | {counter: number}, flags)
            if record.status == "valid":
                return True
            alone = not does_not_fit(record) or after_failure(record) == "stop"
            if not alone or not self._may_be_tried_again(record):
                break
        return False

    def _may_be_tried_again(self, record: RunRecord) -> bool:
        """Of a run that is not valid. Raises PreflightError where every other run would be disturbed too."""
        then = after_failure(record)
        if then == "stop":
            hint = "mend the cause, then start the campaign again; finished runs are kept"
            raise PreflightError(f"{record.folder}: {why(record)}", hint)
        if then == "give_up":
            self.display.note(f"{record.folder}: not tried again, it would end the same way")
        return then == "retry"

    def _one(self, fields: dict[str, Any], flags: tuple[str, ...]) -> RunRecord:
        """One attempt, from the empty folder to the committed one."""
        if self.stop.event.is_set():
            raise Stopped
        folder = f"{fields['run_id']}.p{fields['pass_number']}a{fields['attempt']}"
        identity = RunIdentity(
            **fields, folder=folder, campaign=self.config.campaign.name, sitting_id=self.sitting_id,
            machine_id=self.place.machine_id, cache_id=self.place.cache_id,
        )  # fmt: skip
        directory = self.store.begin(identity.kind, folder)
        context = RunContext(
            identity=identity, config=self.config, host=self.host, gpu=self.gpu, arm_flags=flags,
            directory=directory, marker=f"{self.store.process_mark}:{folder}", on_phase=self.display.phase,
            stop_requested=self.stop.event,
        )  # fmt: skip
        self.display.begin(folder, self._tally())
        begun = time.monotonic()
        try:
            record = self._execute(context)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise StoreError(
                f"{folder}: {error.strerror or error}{where}",
                "mend the cause (full disk?), then start the campaign again; finished runs are kept",
            ) from error
        self._written, self._together = [*self._written, record], None
        if (together := self.records[-1]) != record:
            record = self._written[-1] = together
            write_atomic(directory / "run.json", record.model_dump_json(indent=1) + "\n")
        self.store.commit(directory)
        self._failed += record.status != "valid"
        self.display.finished(record, time.monotonic() - begun)
        if record.status == "invalid":
            self.display.note(f"{record.folder}: {self._judge} says why")
        return record
