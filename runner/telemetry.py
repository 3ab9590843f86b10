"""Samples the GPU every 100 ms into a CSV file, and its processes every second, from before the engine's start to
after its end."""

import csv
import threading
import time
from collections.abc import Set
from dataclasses import astuple, fields
from pathlib import Path
from typing import TextIO

from runner.errors import CampaignError
from runner.nvml import Gpu, TelemetryRow

COLUMNS = tuple(field.name for field in fields(TelemetryRow))
INTERVAL_S = 0.1
LOOK_EVERY = 10  # samples: the file is flushed, the GPU's processes are read


class Telemetry:
    """A sampler thread. When NVML or the disk fails it stops sampling, keeps what it has and says why."""

    def __init__(self, gpu: Gpu, path: Path, interval_s: float = INTERVAL_S) -> None:
        self._gpu, self._path, self._interval_s = gpu, path, interval_s
        self._begun, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._first_seen: dict[int, int] = {}  # compute processes of the GPU, CLOCK_MONOTONIC ns
        self._last_seen: dict[int, int] = {}
        self.told = False  # whether the driver tells of processes
        self.samples = 0
        self.reason: str | None = None  # why it ended before it was stopped

    def start(self) -> None:
        """Make the file (OSError if it cannot be made) and take the first sample before returning."""
        self._path.write_text(",".join(COLUMNS) + "\n", encoding="ascii")
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()
        self._begun.wait()

    def stop(self) -> None:
        """Take a last sample, close the file. May be called twice, or without a start."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def foreign(self, own: Set[int], healthy_ns: int, begin_ns: int, end_ns: int) -> tuple[int, ...] | None:
        """Compute processes seen in the window that are none of the run's `own`; None where the driver tells of none at
        all. Ids of another namespace (a container sees the host's) cannot be told apart: then it is those that were not
        there when the engine became healthy."""
        if not self.told:
            return None
        there = {pid for pid, last_ns in self._last_seen.items() if last_ns >= begin_ns}
        there = {pid for pid in there if self._first_seen[pid] <= end_ns}
        strange = there - own if own & there else {pid for pid in there if self._first_seen[pid] > healthy_ns}
        return tuple(sorted(strange))

    def _look(self) -> None:
        now_ns, pids = time.monotonic_ns(), self._gpu.processes()
        self.told |= pids is not None
        for pid in pids or ():
            self._first_seen.setdefault(pid, now_ns)
            self._last_seen[pid] = now_ns

    def _run(self) -> None:
        try:
            with self._path.open("a", encoding="ascii", newline="") as file:
                self._sample_until_stopped(file)
        except Exception as error:
            what = error.message if isinstance(error, CampaignError) else f"{type(error).__name__}: {error}"
            self.reason = f"{what} after {self.samples} samples"
        finally:
            self._begun.set()

    def _sample_until_stopped(self, file: TextIO) -> None:
        rows = csv.writer(file, lineterminator="\n")
        due_s, last = time.monotonic(), False
        while True:
            rows.writerow(astuple(self._gpu.sample()))  # None: an empty field
            self.samples += 1
            self._begun.set()
            if self.samples % LOOK_EVERY == 0:
                file.flush()
                self._look()
            if last:
                return
            due_s = max(due_s + self._interval_s, time.monotonic())  # a late sample shifts the rest, no burst
            last = self._stop.wait(max(0.0, due_s - time.monotonic()))
