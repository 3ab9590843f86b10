"""What a sitting ran on: machine, GPU, engine and its packages, models, this program. One JSON-able dict.

`must_agree` repeats the values that runs must share to be pooled. A fact that cannot be had is None.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from runner.config import Config, ModelSection
from runner.errors import PreflightError
from runner.launcher import EngineHost
from runner.nvml import Gpu

SCHEMA_VERSION = 1
HASHED_WHOLE_BYTES = 64 * 2**20  # larger files: by the name of the hub's content-addressed blob, or size alone
QUESTION_TIMEOUT_S = 120.0
MUST_AGREE = (
    "machine.cpu",
    "gpu.name",
    "gpu.memory_total_mib",
    "gpu.power_limit_mw",
    "gpu.ecc",
    "gpu.driver",
    "engine.kind",
    "engine.version",
    "engine.commit",
    "engine.packages_sha256",
    "engine.environment_sha256",
)

# Asked of the engine's Python. torch is not imported: its version file is enough and takes no seconds.
_QUESTION = """
import importlib.metadata as m, importlib.util as u, json, platform, runpy, os
def constants(package, file):
    spec = u.find_spec(package)
    path = spec and spec.origin and os.path.join(os.path.dirname(spec.origin), file)
    return runpy.run_path(path) if path and os.path.exists(path) else {}
vllm, torch = constants("vllm", "_version.py"), constants("torch", "version.py")
print(json.dumps({
    "version": vllm.get("__version__"), "commit": vllm.get("__commit_id__"),
    "torch_cuda": torch.get("cuda"), "torch_commit": torch.get("git_version"),
    "python": platform.python_version(),
    # reversed: of two with one name the first on the path is the one imported
    "packages": {d.name.lower(): d.version for d in reversed(list(m.distributions())) if d.name},
}))
"""


def collect_provenance(config: Config, host: EngineHost, gpu: Gpu | None) -> dict[str, Any]:
    """All of it; takes a second or two and no GPU memory, so run it before anything is timed.

    Raises PreflightError when the engine's Python cannot be asked, NvmlFailed when the GPU cannot.
    """
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "collected": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "gpu": gpu.facts() if gpu else None,
        "engine": _engine(config, host),
        "models": {name: _model(model, host.models) for name, model in config.models.items()},
        "runner": _runner(),
        "campaign": {"name": config.campaign.name, "file_sha256": _sha256(config.text.encode())},
    }
    found["must_agree"] = {key: _at(found, key) for key in MUST_AGREE}
    return found


def _at(found: dict[str, Any], key: str) -> Any:
    value: Any = found
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(value: Any) -> str:
    return _sha256(json.dumps(value, sort_keys=True).encode())


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _field(text: str | None, name: str, separator: str) -> str | None:
    """The value of the first `name<separator>value` line."""
    for line in (text or "").splitlines():
        key, found, value = line.partition(separator)
        if found and key.strip() == name:
            return value.strip().strip('"')
    return None


def _machine() -> dict[str, Any]:
    zone = Path("/etc/localtime")
    return {
        "host": platform.node(),
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "os": _field(_read("/etc/os-release"), "PRETTY_NAME", "="),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "product": _read("/sys/class/dmi/id/product_name"),
        "cpu": _field(_read("/proc/cpuinfo"), "model name", ":"),
        "cpus_logical": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "cpu_governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "load_average_1min": os.getloadavg()[0],
        "time_zone": str(zone.resolve()).partition("zoneinfo/")[2] or time.tzname[0],
        "clock_source": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
    }


def _engine(config: Config, host: EngineHost) -> dict[str, Any]:
    environment, added = host.environment(config, marker="")
    campaign_sets = {k: v for k, v in sorted(added.items()) if not k.startswith("CAMPAIGN_RUN")}
    shared: dict[str, Any] = {
        "kind": config.engine.kind,
        "simulated": config.engine.kind == "stand-in",
        "version_asked_for": config.engine.version,
        "image": config.engine.image,
        "launcher": config.engine.launcher,
        "environment": campaign_sets,
        "environment_sha256": _digest(config.engine.environment),  # without this machine's paths
    }
    if config.engine.kind == "stand-in":
        return {**shared, "version": config.engine.version}
    answer = _ask(host.python, environment)
    return {**shared, "python_executable": host.python, **answer, "packages_sha256": _digest(answer["packages"])}


def _ask(python: str, environment: dict[str, str]) -> dict[str, Any]:
    """Versions in the engine's environment."""
    message: object
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION],
            env=environment,
            capture_output=True,
            text=True,
            timeout=QUESTION_TIMEOUT_S,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        message = ((error.stderr or "").strip().splitlines() or [error])[-1]
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        message = error
    else:
        return {**answer, "packages": dict(sorted(answer["packages"].items()))}
    raise PreflightError(f"--engine-python {python}: {message}", "check --engine-python and --engine-path")


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
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): _file(path) for path in paths}


def _file(path: Path) -> dict[str, Any]:
    """Size and SHA-256; the hub's cache names the blob of a large file by it, so that none is read."""
    size, blob = path.stat().st_size, path.resolve().name
    if size <= HASHED_WHOLE_BYTES:
        return {"bytes": size, "sha256": _sha256(path.read_bytes())}
    named = path.is_symlink() and len(blob) == 64 and set(blob) <= set("0123456789abcdef")
    return {"bytes": size, "sha256": blob if named else None}


def _runner() -> dict[str, Any]:
    own = Path(__file__).resolve().parent.parent
    commit, status = _git(own, "rev-parse", "HEAD"), _git(own, "status", "--porcelain")
    dirty = None if status is None else bool(status)
    packed = own / "GIT_COMMIT"  # written by tools/gpu-host/pack.sh for hosts without git
    if commit is None and packed.is_file():
        commit, _, mark = packed.read_text(encoding="ascii").strip().partition("-")
        dirty = mark == "dirty"
    return {
        "version": _version("eager-cost"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "git_commit": commit,
        "git_dirty": dirty,
        "packages": {name: _version(name) for name in ("duckdb", "nvidia-ml-py", "psutil", "pydantic")},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of git in the checkout this program runs from; None when it is not one, or git is not there."""
    if not (folder / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
