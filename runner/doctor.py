"""`campaign doctor`: every condition of a campaign looked at, each failed one with what mends it. Measures nothing."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from analysis.gates_gpu import IDLE_LIMIT_MIB
from runner.config import Config
from runner.errors import CampaignError, PreflightError
from runner.http import HOST
from runner.launcher import EngineHost
from runner.memory import GIB, utilization_for
from runner.nvml import Gpu
from runner.plan import Plan
from runner.plan_view import plan_disk_bytes
from runner.processes import PORTS, free_port
from runner.store import Store
from runner.workers import ALONE, GpuOptions

DRIVER = (580,)  # of CUDA 13
COMPOSE = (2, 30)  # knows `gpus`
CACHE_GIB = 5.0  # compile caches of a campaign's arms, generously
RELEASED = datetime(2026, 6, 1, tzinfo=UTC)
CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


class NotChecked(Exception):
    """This cannot or need not be looked at here; the text says why."""


@dataclass(frozen=True)
class Finding:
    """`state`: ok, FAILED or not checked; `found`: what is there; `mend`: the next step where it failed."""

    name: str
    state: str
    found: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.state:11}  {self.name:12}  {self.found}" + (f"\n{'':13}next: {self.mend}" if self.mend else "")


@dataclass(frozen=True)
class Place:
    """What a campaign would be run with."""

    config: Config
    plan: Plan
    host: EngineHost
    results: Path  # absolute
    gpus: GpuOptions

    @cached_property
    def opened(self) -> list[Gpu]:
        """The GPUs that would be used; none for an engine that uses none. Raises PreflightError."""
        return self.gpus.open(self.config)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def _gpu(place: Place) -> str:
    """Driver, card, MIG, memory in use, memory budget; of every GPU that would be used."""
    if not (gpus := place.opened):
        raise NotChecked("this engine uses none")
    for gpu in gpus:
        facts, used = gpu.facts(), gpu.memory_used_mib()
        if _version(facts["driver"]) < DRIVER:
            hint = f"install {DRIVER[0]} or newer, e.g. `apt-get install nvidia-driver-580-server-open`, and reboot"
            raise PreflightError(f"driver {facts['driver']} is too old for CUDA 13", hint)
        if used > IDLE_LIMIT_MIB:
            hint = "end them (`nvidia-smi`, `docker ps`), or choose GPUs with --gpu or CUDA_VISIBLE_DEVICES"
            holders = facts["processes"] or "(not visible)"
            raise PreflightError(f"{used} MiB of GPU {facts['index']} are in use, by processes {holders}", hint)
        share = utilization_for(place.config, gpu)
    several = f"; {len(gpus)} of them, a worker each ({ALONE})" if len(gpus) > 1 else ""
    return f"{facts['name']}, driver {facts['driver']}, idle; the engine may use {share} of it{several}"


def _engine(place: Place) -> str:
    """The engine's environment; in a container also its start and its GPU."""
    engine, host = place.config.engine, place.host.with_containers(place.config, pull=False)
    where = ""
    if containers := host.containers:
        where = f" in {engine.image}, Docker {containers.version}"
        for folder in (host.cache, place.results):
            containers.host_path(folder)
    host.check(place.config, ())
    if containers:
        for gpu in place.opened:
            containers.ask(["nvidia-smi", "-L"], {}, 60.0, gpu_uuid=gpu.identity().uuid)
    return f"{engine.kind} {engine.version}{where}"


def _models(place: Place) -> str:
    if place.config.engine.kind == "stand-in":
        raise NotChecked("the stand-in needs none")
    place.host.check_models(place.config, place.plan.models)
    return f"{', '.join(place.plan.models)} in {place.host.models}"


def _compose(place: Place) -> str:
    if place.config.engine.launcher == "process":
        raise NotChecked("not needed by the process launcher")
    if shutil.which("docker") is None:
        raise NotChecked("no docker command here (inside a container there need be none)")
    done = subprocess.run(["docker", "compose", "version", "--short"], capture_output=True, text=True, check=False)
    said = done.stdout.strip()
    if done.returncode or _version(said) < COMPOSE:
        raise PreflightError(
            f"docker compose {said or 'is missing'}: {'.'.join(map(str, COMPOSE))} or newer is needed, for `gpus`",
            "`apt-get update && apt-get install docker-compose-plugin` (of Docker's own repository), "
            "or see the note at the head of compose.yaml",
        )
    return said


def _results(place: Place) -> str:
    return Store.look(place.results, place.config)


def check_space(place: Place) -> str:
    """What results, compile caches and weights still to be fetched need, summed by file system (all paths absolute).
    Raises PreflightError where it is not free."""
    config, plan, host = place.config, place.plan, place.host
    models = [config.models[name] for name in plan.models]
    missing = [m for m in models if m.weights == "hub" and not any((host.models / m.directory).glob("*.safetensors"))]
    needs = {
        place.results: 0.1 + 2 * plan_disk_bytes(plan, config) / GIB,
        host.cache: CACHE_GIB if config.engine.kind == "vllm" else 0.1,
        host.models: sum(model.estimate.weights_gib for model in missing),
    }
    by_device: dict[int, tuple[Path, float]] = {}
    for folder, need in needs.items():
        there = next(path for path in (folder, *folder.parents) if path.exists())
        by_device[there.stat().st_dev] = (there, need + by_device.get(there.stat().st_dev, (there, 0.0))[1])
    for there, need in by_device.values():
        free = shutil.disk_usage(there).free / GIB
        if free < need:
            raise PreflightError(
                f"{there}: {_size(free)} free, {_size(need)} needed", "free space, or use a larger one"
            )
    return ", ".join(f"{_size(need)} needed at {there}" for there, need in by_device.values())


def _size(gib: float) -> str:
    return f"{gib:.1f} GiB" if gib >= 1 else f"{1024 * gib:.0f} MiB"


def _port(_: Place) -> str:
    return f"{HOST}:{free_port()} is free, one of {PORTS[0]} to {PORTS[1]}"


def _clock(_: Place) -> str:
    source = CLOCK.read_text(encoding="ascii").strip() if CLOCK.exists() else "unknown"
    if source in ("hpet", "acpi_pm", "jiffies"):
        raise PreflightError(f"clock source {source} is slow to read", f"`echo tsc | sudo tee {CLOCK}`, or another VM")
    if (now := datetime.now(UTC)) < RELEASED:
        raise PreflightError(f"the clock says {now:%Y-%m-%d}", "`sudo timedatectl set-ntp true`")
    return f"{source}, {now:%Y-%m-%d %H:%M} UTC"


CHECKS: dict[str, Callable[[Place], str]] = {
    "GPU": _gpu, "engine": _engine, "models": _models, "compose": _compose, "results": _results, "disk": check_space,
    "port": _port, "clock": _clock,
}  # fmt: skip


def examine(place: Place) -> Iterator[Finding]:
    """Every check, one after the other."""
    for name, check in CHECKS.items():
        try:
            yield Finding(name, "ok", check(place))
        except NotChecked as reason:
            yield Finding(name, "not checked", str(reason))
        except CampaignError as error:
            yield Finding(name, "FAILED", error.message, error.hint)
