"""What a sitting ran on: machine, GPU, engine and its packages, models, this program. One JSON-able dict.

`must_agree` repeats the values that runs must share to be pooled. A fact that cannot be had is None.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from analysis.evidence import fact_at
from runner.config import Config
from runner.config_model import ModelSection
from runner.launcher import EngineHost
from runner.nvml import Gpu
from runner.processes import MARKER_VARIABLE
from runner.units import cpu_list

SCHEMA_VERSION = 1
OWN = Path(__file__).resolve().parent.parent
HASHED_WHOLE_BYTES = 64 * 2**20  # larger files: by the name of the hub's content-addressed blob, or size alone
MUST_AGREE = (
    "machine.cpu", "gpu.name", "gpu.memory_total_mib", "gpu.power_limit_mw", "gpu.ecc", "gpu.driver",
    "engine.kind", "engine.version", "engine.commit", "engine.packages_sha256", "engine.environment_sha256",
    "engine.launcher", "engine.container.image_id",
)  # fmt: skip


def collect_provenance(config: Config, host: EngineHost, gpu: Gpu | None) -> dict[str, Any]:
    """All of it; takes some seconds and no GPU memory. Run it before the sitting's first start: the GPU's power at rest
    is read.

    Raises PreflightError when the engine's Python cannot be asked, NvmlFailed when the GPU cannot.
    """
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "collected": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(host),
        "gpu": {**gpu.facts(), "idle": gpu.idle()} if gpu else None,
        "engine": _engine(config, host),
        "models": {name: _model(model, host.models) for name, model in config.models.items()},
        "runner": _runner(),
        "campaign": {"name": config.campaign.name, "file_sha256": _sha256(config.text.encode())},
    }
    found["must_agree"] = {key: fact_at(found, key) for key in MUST_AGREE}
    return found


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(value: Any) -> str:
    return _sha256(json.dumps(value, sort_keys=True).encode())


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _match(pattern: str, path: str) -> str | None:
    found = re.search(pattern, _read(path) or "", re.MULTILINE)
    return found[1] if found else None


def _machine(host: EngineHost) -> dict[str, Any]:
    zone = Path("/etc/localtime")
    return {
        "host": platform.node(),
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "os": _match(r'^PRETTY_NAME="?([^"\n]*)', "/etc/os-release"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "product": _read("/sys/class/dmi/id/product_name"),
        "cpu": _match(r"^model name\s*: (.*)$", "/proc/cpuinfo"),
        "cpus_logical": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "cpus_given": cpu_list(host.cpus or os.sched_getaffinity(0)),  # to engine and client
        "cpu_siblings": _read("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list"),  # share a core with CPU 0
        "cpu_governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "load_average_1min": os.getloadavg()[0],
        "time_zone": str(zone.resolve()).partition("zoneinfo/")[2] or time.tzname[0],
        "clock_source": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        "container_toolkit": _said("nvidia-ctk", "--version") or _said("nvidia-container-cli", "--version"),
    }


def _engine(config: Config, host: EngineHost) -> dict[str, Any]:
    engine = config.engine
    _, added = host.environment(config, marker="")
    facts: dict[str, Any] = {
        "kind": engine.kind,
        "simulated": engine.kind == "stand-in",
        "version_asked_for": engine.version,
        "image": engine.image,
        "lock_sha256": _lock("engine.txt"),
        "launcher": engine.launcher,
        "environment": {name: value for name, value in sorted(added.items()) if name != MARKER_VARIABLE},
        "environment_sha256": _digest(engine.environment),  # without this machine's paths
    }
    if host.containers:
        facts["container"] = host.containers.facts()
    if engine.kind == "stand-in":
        return {**facts, "version": engine.version}
    answer = host.ask_engine(config)
    return {**facts, "python_executable": host.python, **answer, "packages_sha256": _digest(answer["packages"])}


def _model(model: ModelSection, models: Path) -> dict[str, Any]:
    return {
        "repository": model.repository,
        "revision": model.revision,
        "weights": "random weights" if model.weights == "dummy" else "as published",
        "files": _files(models / model.directory),
        "tokenizer_files": _files(models / model.tokenizer) if model.tokenizer else None,
    }


def _files(folder: Path) -> dict[str, Any]:
    """By path in the folder; empty where the folder is not on this machine."""
    return {str(path.relative_to(folder)): _file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _file(path: Path) -> dict[str, Any]:
    """Size and SHA-256; the hub's cache names the blob of a large file by it, so that none is read."""
    size, blob = path.stat().st_size, path.resolve().name
    if size <= HASHED_WHOLE_BYTES:
        return {"bytes": size, "sha256": _sha256(path.read_bytes())}
    named = path.is_symlink() and re.fullmatch("[0-9a-f]{64}", blob)
    return {"bytes": size, "sha256": blob if named else None}


def _lock(name: str) -> str | None:
    """Of the package list as it lies beside this program; None where it was installed without."""
    path = OWN / "requirements" / name
    return _sha256(path.read_bytes()) if path.is_file() else None


def _runner() -> dict[str, Any]:
    commit, status = _git(OWN, "rev-parse", "HEAD"), _git(OWN, "status", "--porcelain")
    dirty = None if status is None else bool(status)
    packed = OWN / "GIT_COMMIT"  # written by tools/gpu-host/pack.sh and container/git-commit.sh for hosts without git
    if commit is None and packed.is_file() and packed.stat().st_size:
        commit, _, mark = packed.read_text(encoding="ascii").strip().partition("-")
        dirty = {"": False, "dirty": True}.get(mark)
    return {
        "version": _version("eager-cost"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "lock_sha256": _lock("run.txt"),
        "git_commit": commit,
        "git_dirty": dirty,
        "packages": {name: _version(name) for name in ("duckdb", "nvidia-ml-py", "psutil", "pydantic")},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _said(*command: str) -> str | None:
    """What a program prints; None when it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of git in the checkout this program runs from; None when it is not one, or git is not there."""
    return _said("git", "-C", str(folder), *arguments) if (folder / ".git").exists() else None
