"""A model of the vLLM 0.23.0 V1 scheduler: which requests run in each engine step, without any clock.

Modelled after `vllm/v1/core/sched/scheduler.py` (FCFS): running requests first, then the waiting ones whose
whole sequence fits (`scheduler_reserve_full_isl`), chunked prefill within a token budget, last-come
preemption by recompute, one null block, no prefix cache. With asynchronous scheduling (`AsyncScheduler`,
batch queue of two) step N+1 is planned before the tokens of step N are known, so blocks come free one step
later.

Not modelled: speculative decoding, LoRA, encoder inputs, KV connectors, pipeline parallelism, priorities.
Pure: the same calls give the same steps. Units: tokens, blocks of `block_size` tokens, shares 0–1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from analysis.scheduling_config import (
    GraphMode,
    RuntimeMode,
    SchedulerConfig,
    SchedulingError,
    default_capture_sizes,
)

__all__ = [
    "GraphMode",
    "Prediction",
    "RuntimeMode",
    "Scheduler",
    "SchedulerConfig",
    "SchedulingError",
    "Step",
    "default_capture_sizes",
    "simulate",
    "summarise",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step as a stat logger sees it. Running, waiting and KV usage are read after the next
    step is planned (asynchronous scheduling); token columns are None where the engine reports none: an
    empty step, or no output."""

    running: int
    waiting: int
    kv_usage: float
    preempted: int  # counted when the preempted request next emits a token
    prompt_tokens: int | None  # of requests whose first token this is
    generated_tokens: int | None
    unpadded_tokens: int | None
    padded_tokens: int | None
    runtime_mode: RuntimeMode | None
    emitted: tuple[str, ...] = ()  # one token each, in batch order
    finished: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class _Request:
    request_id: str
    prompt_tokens: int
    max_tokens: int
    generated: int = 0
    computed: int = 0  # tokens planned so far, in flight ones included
    in_flight: int = 0  # planned output tokens whose value is not known yet (0 or 1)
    blocks: int = 0
    preemptions_to_report: int = 0
    waiting: bool = True

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def planned(self) -> int:
        """Tokens that exist or are in flight: what `computed` has to catch up with."""
        return self.tokens + self.in_flight

    @property
    def last_token_in_flight(self) -> bool:
        return self.in_flight > 0 and self.generated + self.in_flight >= self.max_tokens


@dataclass(slots=True)
class _Batch:
    tokens: int = 0
    uniform_decode: bool = True
    emitting: list[_Request] = field(default_factory=list)


class Scheduler:
    """The engine's scheduler, step by step. A caller that keeps time calls `step`, lets the step's
    duration pass, then delivers `emitted`; requests added in that time take part in the step after
    next, as in the engine."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._requests: dict[str, _Request] = {}
        self._free = config.usable_blocks
        self._batches: deque[_Batch] = deque()
        self._finished_to_report = False  # the engine plans one more, empty step to tell its worker

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        return 1.0 - self._free / self.config.usable_blocks if self.config.usable_blocks else 0.0

    def add(self, request_id: str, prompt_tokens: int, output_tokens: int) -> None:
        """Queue a request that generates `output_tokens` (fewer at the context's end). Raises
        SchedulingError if it could never run: id in use, no tokens, longer than the context or than
        the whole KV pool."""
        limit = self.config.max_model_len
        if request_id in self._requests:
            raise SchedulingError(f"request id {request_id!r} is in use")
        if prompt_tokens < 1 or output_tokens < 1:
            raise SchedulingError(
                f"request {request_id!r}: {prompt_tokens} in, {output_tokens} out; both must be at least 1"
            )
        if prompt_tokens >= limit:
            raise SchedulingError(
                f"request {request_id!r}: {prompt_tokens} prompt tokens fill max_model_len {limit}"
            )
        output_tokens = min(output_tokens, limit - prompt_tokens)
        needed = self.config.blocks_for(prompt_tokens + output_tokens - 1)
        if needed > self.config.usable_blocks:
            raise SchedulingError(
                f"request {request_id!r} needs {needed} blocks; "
                f"the pool has {self.config.usable_blocks} besides the null block"
            )
        request = _Request(request_id, prompt_tokens, output_tokens)
        self._requests[request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        """Drop a request; an unknown or finished id is ignored, as the engine does."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        (self._waiting if request.waiting else self._running).remove(request)
        self._release(request)
        self._finished_to_report = True

    def step(self) -> Step | None:
        """Plan ahead as far as the engine does, then complete the oldest planned step. None: nothing to
        do."""
        depth = 2 if self.config.asynchronous else 1
        while len(self._batches) < depth and (self._requests or self._finished_to_report):
            self._batches.append(self._plan())
        return self._complete(self._batches.popleft()) if self._batches else None

    def _plan(self) -> _Batch:
        batch = _Batch()
        self._finished_to_report = False
        budget, preempted = self._plan_running(batch)
        if not preempted:
            self._plan_waiting(batch, budget)
        return batch

    def _plan_running(self, batch: _Batch) -> tuple[int, bool]:
        budget = self.config.max_num_batched_tokens
        preempted = False
        index = 0
        while index < len(self._running) and budget > 0:
            request = self._running[index]
            index += 1
            wanted = min(request.planned - request.computed, budget)
            if wanted == 0 or request.last_token_in_flight:
                continue
            while not self._allocate(request, request.computed + wanted):
                victim = self._running.pop()
                self._preempt(victim)
                preempted = True
                if victim is request:
                    return budget, True
            self._schedule(batch, request, wanted)
            budget -= wanted
        return budget, preempted

    def _plan_waiting(self, batch: _Batch, budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self.config.max_num_seqs:
            request = self._waiting[0]
            if self.config.blocks_for(request.tokens) > self._free:
                return
            wanted = min(request.tokens, budget)
            self._allocate(request, wanted)
            self._waiting.popleft()
            request.waiting = False
            self._running.append(request)
            self._schedule(batch, request, wanted)
            budget -= wanted

    def _schedule(self, batch: _Batch, request: _Request, tokens: int) -> None:
        batch.tokens += tokens
        batch.uniform_decode &= tokens == 1
        request.computed += tokens
        if request.computed >= request.planned:
            request.in_flight += 1
            batch.emitting.append(request)

    def _allocate(self, request: _Request, tokens: int) -> bool:
        needed = self.config.blocks_for(tokens) - request.blocks
        if needed > self._free:
            return False
        if needed > 0:
            request.blocks += needed
            self._free -= needed
        return True

    def _release(self, request: _Request) -> None:
        self._free += request.blocks
        request.blocks = 0

    def _preempt(self, request: _Request) -> None:
        self._release(request)
        request.computed = 0
        request.preemptions_to_report += 1
        request.waiting = True
        self._waiting.appendleft(request)

    def _complete(self, batch: _Batch) -> Step:
        emitted: list[str] = []
        finished: list[_Request] = []
        preempted = prompt_tokens = 0
        for request in batch.emitting:
            if request.request_id not in self._requests:
                continue  # aborted while in flight
            request.in_flight -= 1
            request.generated += 1
            emitted.append(request.request_id)
            preempted += request.preemptions_to_report
            request.preemptions_to_report = 0
            if request.generated == 1:
                prompt_tokens += request.prompt_tokens
            if request.generated >= request.max_tokens:
                finished.append(request)
        for request in finished:
            self.abort(request.request_id)
        padded, mode = (
            self.config.padded(batch.tokens, batch.uniform_decode) if batch.tokens else (None, None)
        )
        return Step(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=self.kv_usage,
            preempted=preempted,
            prompt_tokens=prompt_tokens if emitted else None,
            generated_tokens=len(emitted) or None,
            unpadded_tokens=batch.tokens or None,
            padded_tokens=padded,
            runtime_mode=mode,
            emitted=tuple(emitted),
            finished=tuple(request.request_id for request in finished),
        )


def simulate(
    config: SchedulerConfig,
    lengths: Iterable[tuple[int, int]],
    concurrency: int,
    first_arrivals: int = 1,
    client_lag_steps: int = 1,
) -> list[Step]:
    """Steps of a closed loop: `concurrency` clients send the (prompt, output) token pairs in order, each the
    next one when its request ends.

    `first_arrivals` requests reach the engine before the rest of the first burst, which comes while the
    first step runs. A client's next request reaches the engine when `client_lag_steps` further steps have
    been planned after the end of its last one: 1 when network and client take less than a step, as on a GPU;
    hundreds with a model so small that a step takes a millisecond. Raises SchedulingError for a request that
    could never run or a concurrency below 1.
    """
    if concurrency < 1:
        raise SchedulingError(f"concurrency is {concurrency}; it must be at least 1")
    scheduler = Scheduler(config)
    queue = deque(enumerate(lengths))

    def send(count: int) -> None:
        for _ in range(min(count, len(queue))):
            index, (prompt, output) = queue.popleft()
            scheduler.add(str(index), prompt, output)

    steps: list[Step] = []
    first_arrivals = min(first_arrivals, concurrency)
    send(first_arrivals)
    due = deque([(1, concurrency - first_arrivals)])  # (steps planned, requests that then arrive)
    planned = 0
    while True:
        step = scheduler.step()
        planned += 1
        if step:
            steps.append(step)
            if step.finished:
                due.append((planned + client_lag_steps, len(step.finished)))
        elif due:
            planned = due[0][0]  # idle until the next request
        else:
            return steps
        while due and due[0][0] <= planned:
            send(due.popleft()[1])


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a load is expected to do: figures over the waiting span (from the first step that leaves a
    request waiting to the last token; None if none ever waits) and over all steps."""

    steps: int
    waiting_steps: int | None
    mean_running: float | None
    preempted: int
    scheduled_tokens: int
    padded_share_full: float | None  # padding over padded tokens of FULL steps; None without such steps


def summarise(steps: Sequence[Step]) -> Prediction:
    """Figures of `steps` in the words of the recorded step traces; steps without tokens are left out."""
    first = next((i for i, step in enumerate(steps) if step.waiting), None)
    span = [] if first is None else [step for step in steps[first:] if step.unpadded_tokens]
    working = [step for step in steps if step.unpadded_tokens]
    full = [step for step in working if step.runtime_mode == "FULL"]
    padded = sum(step.padded_tokens or 0 for step in full)
    return Prediction(
        steps=len(working),
        waiting_steps=len(span) if span else None,
        mean_running=sum(step.running for step in span) / len(span) if span else None,
        preempted=sum(step.preempted for step in steps),
        scheduled_tokens=sum(step.unpadded_tokens or 0 for step in working),
        padded_share_full=(padded - sum(step.unpadded_tokens or 0 for step in full)) / padded
        if padded
        else None,
    )
