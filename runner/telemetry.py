"""Samples the GPU every 100 ms into a CSV file, from before the engine's start to after its end."""

from __future__ import annotations

import csv
import threading
import time
from dataclasses import astuple, fields
from pathlib import Path
from typing import TextIO

from runner.errors import CampaignError
from runner.nvml import Gpu, TelemetryRow

COLUMNS = tuple(field.name for field in fields(TelemetryRow))
INTERVAL_S = 0.1
FLUSH_EVERY = 10


class Telemetry:
    """A sampler thread. When NVML or the disk fails it stops sampling, keeps what it has and says why."""

    def __init__(self, gpu: Gpu, path: Path, interval_s: float = INTERVAL_S) -> None:
        self._gpu, self._path, self._interval_s = gpu, path, interval_s
        self._begun, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
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
            if self.samples % FLUSH_EVERY == 0:
                file.flush()
            if last:
                return
            due_s = max(due_s + self._interval_s, time.monotonic())  # a late sample shifts the rest, no burst
            last = self._stop.wait(max(0.0, due_s - time.monotonic()))
