"""A model of the vLLM 0.23.0 V1 scheduler: which requests run in each engine step, without any clock.

Modelled after `vllm/v1/core/sched/scheduler.py` (FCFS): running requests first, then the waiting ones whose
whole sequence fits (`scheduler_reserve_full_isl`), chunked prefill within a token budget, last-come
preemption by recompute, one null block, no prefix cache. With asynchronous scheduling (`AsyncScheduler`,
batch queue of two) step N+1 is planned before the tokens of step N are known, so blocks come free one step
later. Not modelled: speculative decoding, LoRA, encoder inputs, KV connectors, pipeline parallelism,
priorities.

Pure: the same calls give the same steps. Units: tokens, blocks of `block_size` tokens, shares 0–1.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

GraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
RuntimeMode = Literal["NONE", "PIECEWISE", "FULL"]
_AT_LEAST_1 = ("num_gpu_blocks", "block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len")


class SchedulingError(ValueError):
    """A configuration or request that the engine would refuse; names the value and what is allowed."""


def default_capture_sizes(max_num_seqs: int = 1024, max_capture: int = 512) -> tuple[int, ...]:
    """Batch sizes captured by default: 1, 2, 4, then every 8 below 256, then every 16 (51 up to 512)."""
    largest = min(max_num_seqs * 2, max_capture)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What decides the steps. Defaults are `vllm serve` 0.23.0 on a card of 70 GiB or more."""

    num_gpu_blocks: int
    block_size: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    max_model_len: int = 4096
    capture_sizes: tuple[int, ...] = ()  # empty: no graphs
    graph_mode: GraphMode = "FULL_AND_PIECEWISE"
    asynchronous: bool = True  # False on the CPU build

    def __post_init__(self) -> None:
        for name in _AT_LEAST_1:
            if getattr(self, name) < 1:
                raise SchedulingError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if list(self.capture_sizes) != sorted(set(self.capture_sizes)):
            raise SchedulingError(f"capture_sizes {self.capture_sizes} must be ascending and distinct")

    @property
    def usable_blocks(self) -> int:
        """Blocks that can hold tokens: one is the reserved null block."""
        return self.num_gpu_blocks - 1

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def padded(self, tokens: int, uniform_decode: bool) -> tuple[int, RuntimeMode]:
        """Tokens after padding to a captured size, and the runtime mode (`v1/cudagraph_dispatcher.py`)."""
        sizes, mode = self.capture_sizes, self.graph_mode
        if not sizes or mode == "NONE" or tokens > sizes[-1]:
            return tokens, "NONE"
        size = sizes[bisect_left(sizes, tokens)]
        if mode == "FULL" or (uniform_decode and size <= self.max_num_seqs and mode != "PIECEWISE"):
            return size, "FULL"
        return (tokens, "NONE") if mode == "FULL_DECODE_ONLY" else (size, "PIECEWISE")


class Step(NamedTuple):
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
    known: int  # tokens that exist or are in flight: planned output whose value is not known yet (0 or 1)
    generated: int = 0
    computed: int = 0  # tokens planned so far, in flight ones included
    blocks: int = 0
    preemptions_to_report: int = 0
    waiting: bool = True

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.generated


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
    def kv_usage(self) -> float:
        return 1.0 - self._free / self.config.usable_blocks if self.config.usable_blocks else 0.0

    def add(self, request_id: str, prompt_tokens: int, output_tokens: int) -> None:
        """Queue a request that generates `output_tokens` (fewer at the context's end). Raises
        SchedulingError if it could never run: id in use, no tokens, longer than the context or than
        the whole KV pool."""
        limit, pool = self.config.max_model_len, self.config.usable_blocks
        output = min(output_tokens, limit - prompt_tokens)
        needed = self.config.blocks_for(prompt_tokens + output - 1)
        problem = None
        if request_id in self._requests:
            problem = "its id is in use"
        elif prompt_tokens < 1 or output_tokens < 1:
            problem = f"{prompt_tokens} in, {output_tokens} out; both must be at least 1"
        elif output < 1:
            problem = f"{prompt_tokens} prompt tokens fill max_model_len {limit}"
        elif needed > pool:
            problem = f"it needs {needed} blocks; the pool has {pool} besides the null block"
        if problem:
            raise SchedulingError(f"request {request_id!r}: {problem}")
        self._requests[request_id] = request = _Request(request_id, prompt_tokens, output, prompt_tokens)
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        """Drop a request; an unknown or finished id is ignored, as the engine does."""
        request = self._requests.pop(request_id, None)
        if request:
            (self._waiting if request.waiting else self._running).remove(request)
            for batch in self._batches:
                batch.emitting = [r for r in batch.emitting if r is not request]
            self._release(request)
            self._finished_to_report = True

    def step(self) -> Step | None:
        """Plan ahead as far as the engine does, complete the oldest planned step. None: nothing to do."""
        depth = 2 if self.config.asynchronous else 1
        while len(self._batches) < depth and (self._requests or self._finished_to_report):
            self._batches.append(self._plan())
        return self._complete(self._batches.popleft()) if self._batches else None

    def skip(self, limit: int) -> int:
        """Pass over up to `limit` steps in which each running request emits one token and none arrives, ends, is
        admitted or preempted. Returns how many, 0 where that is not sure. The state is as after as many `step`s."""
        running, free, size, flying = self._running, self._free, self.config.block_size, int(self.config.asynchronous)
        if (
            not running
            or len(running) > self.config.max_num_batched_tokens
            or self._finished_to_report
            or [batch.emitting for batch in self._batches] != [running] * flying
            or any(batch.tokens != len(running) for batch in self._batches)
            or (
                self._waiting
                and len(running) < self.config.max_num_seqs
                and self.config.blocks_for(self._waiting[0].tokens) <= free
            )
        ):
            return 0
        phases = [0] * size  # requests by the place of their next token in its block: 0 takes a block
        for r in running:
            if r.known != r.tokens + flying or r.computed != r.known - 1 or r.preemptions_to_report:
                return 0
            limit = min(limit, r.max_tokens - 1 - r.generated)
            phases[-r.computed % size] += 1
        steps = 0
        while steps < limit and phases[steps % size] <= free:
            free -= phases[steps % size]
            steps += 1
        for r in running if steps > 0 else ():
            r.generated += steps
            r.known += steps
            r.computed += steps
            r.blocks = self.config.blocks_for(r.computed)
        self._free = free
        return max(steps, 0)

    def _plan(self) -> _Batch:
        batch = _Batch()
        self._finished_to_report = False
        if not self._plan_running(batch):
            self._plan_waiting(batch)
        return batch

    def _plan_running(self, batch: _Batch) -> bool:
        """Plan the running requests; True if one was preempted for want of blocks."""
        preempted = False
        running, budget, block_size = self._running, self.config.max_num_batched_tokens, self.config.block_size
        for request in running:  # those preempted meanwhile are at its end
            needed, left = request.known, budget - batch.tokens
            wanted = needed - request.computed
            if wanted == 0 or needed - request.prompt_tokens >= request.max_tokens:
                continue  # its token in flight has to come first, or is its last
            if wanted == 1 and left and needed <= request.blocks * block_size:  # nearly always; the same without calls
                batch.tokens += 1
                request.computed = needed
                request.known = needed + 1
                batch.emitting.append(request)
                continue
            if wanted > left:
                if not left:
                    break
                wanted, needed = left, request.computed + left
            while needed > request.blocks * block_size and not self._allocate(request, needed):
                preempted = True
                victim = running.pop()
                self._preempt(victim)
                if victim is request:
                    return True
            self._schedule(batch, request, wanted)
        return preempted

    def _plan_waiting(self, batch: _Batch) -> None:
        budget, most = self.config.max_num_batched_tokens, self.config.max_num_seqs
        while self._waiting and batch.tokens < budget and len(self._running) < most:
            request = self._waiting[0]
            if self.config.blocks_for(request.tokens) > self._free:
                return
            wanted = min(request.tokens, budget - batch.tokens)
            self._allocate(request, wanted)
            self._running.append(self._waiting.popleft())
            request.waiting = False
            self._schedule(batch, request, wanted)

    def _schedule(self, batch: _Batch, request: _Request, tokens: int) -> None:
        batch.tokens += tokens
        if tokens > 1:
            batch.uniform_decode = False
        request.computed += tokens
        if request.computed >= request.known:  # it has caught up
            request.known += 1
            batch.emitting.append(request)

    def _allocate(self, request: _Request, tokens: int) -> bool:
        needed = max(self.config.blocks_for(tokens) - request.blocks, 0)
        if needed > self._free:
            return False
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
        emitted, finished = batch.emitting, []
        preempted = prompt_tokens = 0
        for request in emitted:
            request.generated = generated = request.generated + 1
            if request.preemptions_to_report:
                preempted += request.preemptions_to_report
                request.preemptions_to_report = 0
            if generated == 1:
                prompt_tokens += request.prompt_tokens
            if generated >= request.max_tokens:
                finished.append(request.request_id)
        for request_id in finished:
            self.abort(request_id)
        tokens = batch.tokens or None
        padded, mode = self.config.padded(tokens, batch.uniform_decode) if tokens else (None, None)
        return Step(
            len(self._running), len(self._waiting), self.kv_usage, preempted, prompt_tokens if emitted else None,
            len(emitted) or None, tokens, padded, mode, tuple([r.request_id for r in emitted]), tuple(finished),
        )  # fmt: skip


def closed_loop(
    config: SchedulerConfig, lengths: Iterable[tuple[int, int]], concurrency: int, client_lag_steps: int, *, skip: bool
) -> Iterator[tuple[Step, int]]:
    """Steps of a closed loop, and how often each comes in a row; with `skip`, those alike but for KV usage come as one.
    `concurrency` clients send the (prompt, output) token pairs in order, each the next one when its request ends.

    One request reaches the engine before the rest of the first burst, which comes while the first step runs.
    A client's next request reaches the engine when `client_lag_steps` further steps have been planned after
    the end of its last one: 1 when network and client take less than a step, as on a GPU; hundreds with a
    model so small that a step takes a millisecond. Raises SchedulingError for a request that could never run
    or a concurrency below 1.
    """
    if concurrency < 1:
        raise SchedulingError(f"concurrency is {concurrency}; it must be at least 1")
    scheduler = Scheduler(config)
    queue = deque(enumerate(lengths))
    due = deque([(0, 1), (1, concurrency - 1)])  # (steps planned, requests that then arrive)
    planned = 0
    while True:
        while due and due[0][0] <= planned:
            for _ in range(min(due.popleft()[1], len(queue))):
                index, (prompt, output) = queue.popleft()
                scheduler.add(str(index), prompt, output)
        step = scheduler.step()
        planned += 1
        if step:
            steady = skip and not step.preempted and not step.prompt_tokens and not step.finished
            steady &= step.generated_tokens == step.unpadded_tokens == step.running
            again = scheduler.skip(due[0][0] - planned if due else config.max_model_len) if steady else 0
            planned += again
            yield step, 1 + again
            if step.finished:
                due.append((planned + client_lag_steps, len(step.finished)))
        elif due:
            planned = due[0][0]  # idle until the next request
        else:
            return


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a load is expected to do: `steps` with tokens, `preempted` and `scheduled_tokens` over all of it;
    the others over its waiting span, as a recorded trace's, None if no request ever waits."""

    steps: int
    waiting_steps: int | None
    mean_running: float | None
    preempted: int
    scheduled_tokens: int


@lru_cache(maxsize=256)
def predict(
    config: SchedulerConfig, lengths: tuple[tuple[int, int], ...], concurrency: int, client_lag_steps: int = 1
) -> Prediction:
    """Of a closed loop. Raises SchedulingError as `closed_loop` does."""
    return summary(closed_loop(config, lengths, concurrency, client_lag_steps, skip=True))


def summary(steps: Iterable[tuple[Step, int]]) -> Prediction:
    count = span = running = preempted = scheduled = 0
    waited = False
    for step, times in steps:
        waited |= step.waiting > 0
        preempted += step.preempted * times
        if step.unpadded_tokens:
            count += times
            scheduled += step.unpadded_tokens * times
            if waited:
                span += times
                running += step.running * times
    return Prediction(count, span or None, running / span if span else None, preempted, scheduled)
