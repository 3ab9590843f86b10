"""What one run is given (RunContext) and what it has come to so far (Measured)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from runner.config import Config
from runner.launcher import EngineHost
from runner.nvml import Gpu


@dataclass(frozen=True)
class RunContext:
    """What a run or prime needs. `arm_flags` are resolved; `pinned_blocks`: KV blocks to hold the arm at."""

    kind: Literal["run", "prime"]
    run_id: str
    folder: str
    campaign: str
    model: str
    arm: str
    profile: str | None
    repetition: int | None
    block_id: str | None
    block_arms: tuple[str, ...]
    order_in_block: int | None
    seed: int | None
    pass_number: int
    attempt: int
    sitting_id: str
    machine_id: str
    cache_id: str | None
    config: Config
    host: EngineHost
    gpu: Gpu | None
    arm_flags: tuple[str, ...]
    pinned_blocks: int | None
    directory: Path
    marker: str
    on_phase: Callable[[str], None]
    stop_requested: threading.Event

    @property
    def steps_csv(self) -> Path:
        return self.directory.absolute() / "steps.csv"

    @property
    def telemetry_csv(self) -> Path:
        return self.directory / "telemetry.csv"

    @property
    def server_log(self) -> Path:
        return self.directory / "server.log"

    @property
    def bench_log(self) -> Path:
        return self.directory / "bench.log"

    @property
    def bench_result(self) -> Path:
        return self.directory.absolute() / "bench.raw.json"


@dataclass
class Measured:
    """Moments (names of Timeline), command lines and texts of a run in progress."""

    moments: dict[str, int] = field(default_factory=lambda: {"run_begin_ns": time.monotonic_ns()})
    wall_start: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    serve_argv: tuple[str, ...] = ()
    bench_argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    engine_version: str | None = None
    idle_memory_mib: int | None = None
    metrics: dict[str, bytes] = field(default_factory=dict)  # by "before", "after"

    def mark(self, name: str) -> None:
        self.moments[name] = time.monotonic_ns()
