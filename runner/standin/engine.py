"""The engine's loop: the scheduling model on a scaled clock, feeding the completions of the API server."""

import asyncio
import csv
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from analysis.formats.steps import COLUMNS
from analysis.scheduling import Scheduler, Step
from runner.standin.log import EngineLog
from runner.standin.settings import ServeSettings

LATE_STEPS = 8  # steps whose tokens go out together when the loop is behind its clock
LOST_S = 0.05  # the clock drops the time that it is behind, from here on
FLUSH_INTERVAL_S = 0.5

VALUES = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
    "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total",
)  # fmt: skip
FINISHED = ("stop", "length", "abort", "error", "repetition")
CACHE_CONFIG = ("block_size", "enable_prefix_caching", "gpu_memory_utilization", "num_gpu_blocks_override")

Sink = Callable[[int, bool], bool]  # takes (new tokens, finished); False: the client has gone


class StepFile:
    """The step trace, in the format of the plug-in of the real engine; kept nowhere without a path."""

    def __init__(self) -> None:
        path = Path(os.environ.get("CAMPAIGN_STEPS_FILE") or os.devnull)
        self.file = path.open("a", encoding="ascii")
        self._lines, self._rows = csv.writer(self.file, lineterminator="\n"), 0
        self._lines.writerow(COLUMNS)

    def add(self, step: Step) -> None:
        self._rows += 1
        values = {name: getattr(step, name) for name in COLUMNS[1:]} | {"kv_usage": f"{step.kv_usage:.6f}"}
        if step.generated_tokens is None:
            values["preempted"] = None
        self._lines.writerow((time.monotonic_ns(), *values.values()))  # None: an empty field

    def close(self) -> None:
        with self.file:
            self.file.write(f"#end rows={self._rows} dropped=0 errors=0\n")


class Engine:
    """One engine. `values`: its metrics by name; `finished`: requests by the reason of their end."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings, self.log, self.steps = settings, EngineLog(settings), StepFile()
        self.values, self.finished = dict.fromkeys(VALUES, 0.0), Counter[str]()
        self.dead = False
        self._scheduler = Scheduler(settings.scheduler)
        self._sinks: dict[str, Sink] = {}
        self._undelivered, self._ended = Counter[str](), set[str]()
        self._work = asyncio.Event()

    def add(self, request_id: str, prompt_tokens: int, output_tokens: int, sink: Sink) -> None:
        """Queue a request. Raises SchedulingError if it can never run."""
        self._scheduler.add(request_id, prompt_tokens, output_tokens)
        self._sinks[request_id] = sink
        self._work.set()

    def metrics_text(self) -> bytes:
        """/metrics under the engine's names and labels."""
        args, blocks = self.settings.args, self.settings.scheduler.num_gpu_blocks
        labels = f'engine="0",model_name="{args["model"]}"'
        lines = [f"vllm:{name}{{{labels}}} {float(value)}" for name, value in self.values.items()]
        for reason in FINISHED:
            ended = f'{labels},finished_reason="{reason}"'
            lines.append(f"vllm:request_success_total{{{ended}}} {float(self.finished[reason])}")
        config = "".join(f'{name}="{args[name]}",' for name in CACHE_CONFIG)
        lines += [f'vllm:cache_config_info{{{config}num_gpu_blocks="{blocks}"}} 1.0', ""]
        return "\n".join(lines).encode()

    async def run(self) -> None:
        """Steps until cancelled. On a busy host the clock may fall behind; then tokens go out in bunches."""
        at, late = time.monotonic(), 0
        while not self.dead:
            step = self._scheduler.step()
            if step is None:
                self._deliver()
                self._work.clear()
                await self._work.wait()
                at = time.monotonic()
                continue
            at += self.settings.shape.step_ms(step, self.settings.compiled) / 1000 / self.settings.speed
            delay = at - time.monotonic()
            late += 1
            if delay > 0.0005:
                self._deliver()
                await asyncio.sleep(delay)
                late = LATE_STEPS
            elif delay < -LOST_S:
                at = time.monotonic()
            self._account(step)
            if step.finished or late >= LATE_STEPS:
                late = 0
                self._deliver()
                await asyncio.sleep(0)

    def _account(self, step: Step) -> None:
        self.steps.add(step)
        self.values["num_requests_running"] = step.running
        self.values["num_requests_waiting"] = step.waiting
        self.values["kv_cache_usage_perc"] = step.kv_usage
        self.values["num_preemptions_total"] += step.preempted
        self.values["prompt_tokens_total"] += step.prompt_tokens or 0
        self.values["generation_tokens_total"] += step.generated_tokens or 0
        self._undelivered.update(step.emitted)
        self._ended.update(step.finished)

    def _deliver(self) -> None:
        undelivered, self._undelivered = self._undelivered, Counter()
        for request_id, count in undelivered.items():
            finished = request_id in self._ended
            present = self._sinks[request_id](count, finished)
            if finished or not present:
                del self._sinks[request_id]
                self._scheduler.abort(request_id)
                self.finished["length" if finished else "abort"] += 1
        self._ended.clear()

    async def flush(self) -> None:
        """Write the step trace out twice a second, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            self.steps.file.flush()
