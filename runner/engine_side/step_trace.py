"""StatLogger plug-in of vLLM 0.23.0: one CSV line per engine step, in the API server's process.

Runs in the engine's environment: standard library and vLLM only. Found by vLLM through the entry point in the
`.dist-info` folder beside this file once that folder's parent is on PYTHONPATH. Does nothing unless the
environment variable CAMPAIGN_STEPS_FILE names the file to write.

vLLM calls `record()` on the event loop that serves requests, and an exception there fails every request. So
it only stamps CLOCK_MONOTONIC and appends a tuple; a daemon thread formats and writes. The last line,
`#end rows=… dropped=… errors=…`, is written when the interpreter ends in the ordinary way (SIGTERM and SIGINT
included: vLLM turns both into a normal return). A file without it was cut off.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import deque
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

STEPS_FILE_VARIABLE = "CAMPAIGN_STEPS_FILE"
HEADER = (
    "t_ns,running,waiting,kv_usage,preempted,prompt_tokens,generated_tokens,unpadded_tokens,padded_tokens,runtime_mode"
)
FLUSH_INTERVAL_S = 0.2
MAX_PENDING_ROWS = 200_000  # ~50 MB; hours of steps if the disk does not accept a line

Row = tuple[Any, ...]


def format_row(row: Row) -> str:
    """One CSV line without its end; None (not reported in that step) becomes an empty field."""
    before, usage, after = row[:3], row[3], row[4:]
    fields = (*before, None if usage is None else f"{usage:.6f}", *after)
    return ",".join("" if field is None else str(field) for field in fields)


class TraceWriter:
    """Bounded queue of rows and the thread that appends them to a file. Nothing raises after construction."""

    def __init__(self, path: str, max_pending: int = MAX_PENDING_ROWS) -> None:
        self.rows = self.dropped = self.errors = 0
        self.pending: deque[Row] = deque()
        self.max_pending = max_pending
        self._offset = 0
        self._owner = os.getpid()  # a forked child must not end its parent's file
        self._closed = False
        self._write_lock = threading.Lock()
        self._stop = threading.Event()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._append(HEADER + "\n")
        self._thread = threading.Thread(target=self._run, name="step-trace", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, row: Row) -> None:
        if len(self.pending) >= self.max_pending:
            self.dropped += 1
        else:
            self.pending.append(row)

    def close(self) -> None:
        """Write what is pending and the end line. Later rows are ignored."""
        if self._owner != os.getpid():
            return
        self._stop.set()
        self._drain()
        with self._write_lock:
            if not self._closed:
                self._closed = True
                self._append(f"#end rows={self.rows} dropped={self.dropped} errors={self.errors}\n")
                with contextlib.suppress(OSError):
                    os.fsync(self._fd)
                    os.close(self._fd)

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_INTERVAL_S):
            self._drain()

    def _drain(self) -> None:
        with self._write_lock:
            count = 0 if self._closed else len(self.pending)
            lines = []
            for _ in range(count):
                row = self.pending.popleft()
                try:
                    lines.append(format_row(row) + "\n")
                except Exception:
                    self.errors += 1
            if lines and self._append("".join(lines)):
                self.rows += len(lines)
            else:
                self.dropped += len(lines)

    def _append(self, text: str) -> bool:
        """Append whole or not at all: after a failed write the file is cut back to its last full line."""
        data, done = text.encode(), 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], self._offset + done)
        except OSError:
            self.errors += 1
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._offset)
            return False
        self._offset += done
        return True


class StepTraceLogger(StatLoggerBase):  # type: ignore[misc]
    """What vLLM instantiates, once per engine; with several engines only engine 0 is traced."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:  # noqa: ARG002
        self.writer: TraceWriter | None = None
        path = os.environ.get(STEPS_FILE_VARIABLE)
        if path and engine_index == 0:
            try:
                self.writer = TraceWriter(path)
            except Exception as error:
                print(f"step trace: cannot write {path}: {error}", file=sys.stderr, flush=True)

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_unused: Any, **_named: Any) -> None:
        """One engine step; what else the engine hands over is not needed. Waiting counts deferred requests too, as the
        engine's own gauge does."""
        writer = self.writer
        if writer is None:
            return
        try:
            t_ns = time.monotonic_ns()
            running = waiting = usage = preempted = prompt = generated = unpadded = padded = mode = None
            if scheduler_stats is not None:
                running = scheduler_stats.num_running_reqs
                waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
                usage = scheduler_stats.kv_cache_usage
                graph = scheduler_stats.cudagraph_stats
                if graph is not None:
                    unpadded, padded = graph.num_unpadded_tokens, graph.num_padded_tokens
                    mode = graph.runtime_mode
            if iteration_stats is not None:
                preempted = iteration_stats.num_preempted_reqs
                prompt = iteration_stats.prompt_token_stats.total
                generated = iteration_stats.num_generation_tokens
            writer.put((t_ns, running, waiting, usage, preempted, prompt, generated, unpadded, padded, mode))
        except Exception:
            writer.errors += 1

    def log_engine_initialized(self) -> None:
        return
