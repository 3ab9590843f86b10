"""The engine's loop: the scheduling model on a scaled clock, feeding the streams of the API server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from analysis.scheduling import Scheduler, Step
from runner.standin.log import EngineLog, flush
from runner.standin.metrics_text import MetricValues
from runner.standin.settings import ServeSettings

STEP_COLUMNS = (
    "t_ns,running,waiting,kv_usage,preempted,prompt_tokens,generated_tokens,"
    "unpadded_tokens,padded_tokens,runtime_mode"
)
LATE_STEPS = 8  # steps whose tokens go out together when the loop is behind its clock
LOG_INTERVAL_S = 10.0
FLUSH_INTERVAL_S = 0.5


class Stream(Protocol):
    """Where a request's tokens go."""

    def tokens(self, count: int, finished: bool) -> None: ...


@dataclass(slots=True)
class _Live:
    stream: Stream
    prompt_tokens: int
    arrived: float
    first: float | None = None
    last: float = 0.0
    generated: int = 0
    undelivered: int = 0


@dataclass(slots=True)
class StepFile:
    """The step trace, in the format of the plug-in of the real engine. Without a path it keeps nothing."""

    path: str | None
    rows: int = 0
    _lines: list[str] = field(default_factory=lambda: [STEP_COLUMNS])

    def add(self, step: Step) -> None:
        self.rows += 1
        values = (
            time.monotonic_ns(), step.running, step.waiting, f"{step.kv_usage:.6f}",
            None if step.generated_tokens is None else step.preempted, step.prompt_tokens,
            step.generated_tokens, step.unpadded_tokens, step.padded_tokens, step.runtime_mode,
        )  # fmt: skip
        self._lines.append(",".join("" if value is None else str(value) for value in values))

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if self.path and lines:
            with open(self.path, "a", encoding="ascii") as file:  # noqa: PTH123
                file.write("\n".join(lines) + "\n")

    def close(self) -> None:
        self._lines.append(f"#end rows={self.rows} dropped=0 errors=0")
        self.flush()


class Engine:
    def __init__(self, settings: ServeSettings, speed: float, steps: StepFile, log: EngineLog) -> None:
        self.settings, self.speed, self.steps, self.log = settings, speed, steps, log
        self.metrics = MetricValues()
        self.finished = 0
        self.dead = False
        self.on_finished: Callable[[int], None] | None = None
        self._scheduler = Scheduler(settings.scheduler)
        self._live: dict[str, _Live] = {}
        self._touched: dict[str, _Live] = {}
        self._ended: set[str] = set()
        self._work = asyncio.Event()
        self._tables: Counter[tuple[int, int, str]] = Counter()
        self._logged = (0.0, 0.0)

    def add(self, request_id: str, prompt_tokens: int, output_tokens: int, stream: Stream) -> None:
        """Queue a request. Raises SchedulingError if it can never run."""
        self._scheduler.add(request_id, prompt_tokens, output_tokens)
        self._live[request_id] = _Live(stream, prompt_tokens, time.monotonic())
        self._work.set()

    def abort(self, request_id: str) -> None:
        if self._live.pop(request_id, None):
            self._touched.pop(request_id, None)
            self._scheduler.abort(request_id)
            self.metrics.finished["abort"] += 1
            self._work.set()

    async def run(self) -> None:
        """Steps until cancelled. The model's clock may fall behind on a busy host; it then drops the lost
        time."""
        at = time.monotonic()
        late = 0
        while not self.dead:
            step = self._scheduler.step()
            if step is None:
                self._deliver()
                self._work.clear()
                await self._work.wait()
                at = time.monotonic()
                continue
            at += self.settings.shape.step_ms(step, self.settings.compiled) / 1000 / self.speed
            delay = at - time.monotonic()
            if delay > 0.0005:
                self._deliver()
                await asyncio.sleep(delay)
                self._account(step)
                self._deliver()
                late = 0
                continue
            self._account(step)
            late += 1
            if step.finished or late >= LATE_STEPS:
                late = 0
                self._deliver()
                await asyncio.sleep(0)
            if delay < -0.05:
                at = time.monotonic()

    def _account(self, step: Step) -> None:
        self.steps.add(step)
        now = time.monotonic()
        m = self.metrics
        m.gauges.update(
            num_requests_running=step.running,
            num_requests_waiting=step.waiting,
            kv_cache_usage_perc=step.kv_usage,
        )
        if step.unpadded_tokens:
            self._tables[step.unpadded_tokens, step.padded_tokens or 0, step.runtime_mode or "NONE"] += 1
        if not step.emitted:
            return
        prompts, generated = step.prompt_tokens or 0, step.generated_tokens or 0
        m.counters["num_preemptions"] += step.preempted
        m.counters["prompt_tokens"] += prompts
        m.counters["generation_tokens"] += generated
        m.observe("iteration_tokens_total", prompts + generated)
        for request_id in step.emitted:
            live = self._live.get(request_id)
            if live is None:
                continue
            if live.first is None:
                live.first = now
                m.observe("time_to_first_token_seconds", now - live.arrived)
            else:
                m.observe("inter_token_latency_seconds", now - live.last)
            live.last = now
            live.generated += 1
            live.undelivered += 1
            self._touched[request_id] = live
        self._ended.update(step.finished)

    def _deliver(self) -> None:
        if not self._touched:
            return
        touched, ended = self._touched, self._ended
        self._touched, self._ended = {}, set()
        for request_id, live in touched.items():
            count, live.undelivered = live.undelivered, 0
            done = request_id in ended
            if done:
                self._live.pop(request_id, None)
                self._finish(live)
            live.stream.tokens(count, done)
        if ended and self.on_finished:
            self.on_finished(self.finished)

    def _finish(self, live: _Live) -> None:
        self.finished += 1
        m = self.metrics
        m.finished["length"] += 1
        m.observe("e2e_request_latency_seconds", live.last - live.arrived)
        m.observe("request_prompt_tokens", live.prompt_tokens)
        m.observe("request_prefill_kv_computed_tokens", live.prompt_tokens)
        m.observe("request_generation_tokens", live.generated)
        if live.generated > 1 and live.first is not None:
            m.observe(
                "request_time_per_output_token_seconds", (live.last - live.first) / (live.generated - 1)
            )

    async def flush_and_log(self) -> None:
        """Write the step trace twice a second and the engine's ten-second lines; idle intervals are not
        logged."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            self.steps.flush()
            interval = time.monotonic() - last
            if interval >= max(LOG_INTERVAL_S / self.speed, FLUSH_INTERVAL_S):
                last += interval
                self._log(interval)

    def _log(self, interval_s: float) -> None:
        totals = (self.metrics.counters["prompt_tokens"], self.metrics.counters["generation_tokens"])
        prompt, generated = totals[0] - self._logged[0], totals[1] - self._logged[1]
        self._logged = totals
        tables, self._tables = self._tables, Counter()
        if not tables:
            return
        self.log.intervals(interval_s, prompt, generated, self.metrics.gauges)
        if self.settings.args["cudagraph_metrics"]:
            self.log.graph_table(tables)
        flush()
