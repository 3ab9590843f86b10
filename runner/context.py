"""What one run is given (RunContext) and what it has come to so far (Measured)."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from analysis.formats.run_record import ContainerFacts, RunIdentity
from runner.config import Config
from runner.config_model import ModelSection, ProfileSection
from runner.launcher import EngineHost
from runner.nvml import Gpu
from runner.signals import StopRequest


@dataclass(frozen=True)
class RunContext:
    """What a run or prime needs. `arm_flags` are resolved; `directory`: absolute, the half-written folder;
    `marker`: what its processes carry in CAMPAIGN_RUN."""

    identity: RunIdentity
    config: Config
    host: EngineHost
    gpu: Gpu | None
    arm_flags: tuple[str, ...]
    directory: Path
    marker: str
    on_phase: Callable[[str], None]
    stop_requested: StopRequest

    @property
    def model(self) -> ModelSection:
        return self.config.models[self.identity.model]

    @property
    def instruments(self) -> bool:
        """Step trace and GPU samples are on. A prime always has them."""
        return self.identity.kind == "prime" or self.config.arms[self.identity.arm].instruments

    @property
    def profile(self) -> ProfileSection | None:
        """The load of a run; None for a prime."""
        return self.config.profiles[self.identity.profile] if self.identity.profile is not None else None


@dataclass
class Measured:
    """Moments (names of Timeline), command lines and texts of a run in progress. What has the name of a field of
    RunRecord goes into it as it is."""

    moments: dict[str, int] = field(default_factory=lambda: {"run_begin_ns": time.monotonic_ns()})
    wall_start: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    serve_argv: tuple[str, ...] = ()
    bench_argv: tuple[str, ...] = ()
    engine_environment: dict[str, str] = field(default_factory=dict)
    container: ContainerFacts | None = None
    engine_version: str | None = None
    idle_gpu_memory_mib: int | None = None
    gpu_processes_before: tuple[int, ...] | None = None
    own_processes: set[int] = field(default_factory=set)  # the engine's, at the end of the load
    cpu_busy_pct: float | None = None
    cpu_stolen_pct: float | None = None
    metrics: dict[str, bytes] = field(default_factory=dict)  # by "before", "after"

    def mark(self, name: str) -> None:
        self.moments[name] = time.monotonic_ns()
