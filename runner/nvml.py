"""The GPU, through NVML (`nvidia-ml-py`, imported as pynvml). A reading that the device lacks is None.

Every call goes through `_typed`, the one place where NVML's errors become this project's. Memory in use
leaves out what the driver reserves for itself. All calls may be made from any thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import pynvml

from analysis.formats.run_record import GpuIdentity
from runner.errors import PreflightError

MIB = 2**20
P = ParamSpec("P")
T = TypeVar("T")

THROTTLE_REASONS = {  # bits of NVML's clock event mask
    0x1: "gpu_idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}


class NvmlFailed(PreflightError):
    """NVML answered a call with an error."""


class NvmlUnsupported(NvmlFailed):
    """This device, driver or user cannot have this reading."""


@dataclass(frozen=True)
class TelemetryRow:
    """One sample; names and units as in telemetry.parquet (docs/result-files.md)."""

    t_ns: int
    energy_mj: int | None = None
    power_mw: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    memory_used_mib: int | None = None
    gpu_utilisation_pct: int | None = None
    throttle_reasons: int | None = None


@dataclass(frozen=True)
class GpuProcess:
    """A compute process on the GPU; in a container the id may be of the host's name space."""

    pid: int
    used_mib: int | None


@dataclass(frozen=True)
class GpuMemory:
    """Bytes. `reserved` is the driver's own share, None if the driver is too old to say."""

    total: int
    used: int
    reserved: int | None

    @property
    def usable(self) -> int:
        """What a CUDA program sees as the device's total memory."""
        return self.total - (self.reserved or 0)


class Gpu(Protocol):
    """What the runner needs of a GPU. Any method may raise NvmlFailed."""

    def identity(self) -> GpuIdentity: ...

    def memory(self) -> GpuMemory: ...

    def memory_used_mib(self) -> int: ...

    def processes(self) -> tuple[GpuProcess, ...]: ...

    def sample(self) -> TelemetryRow: ...

    def facts(self) -> dict[str, Any]: ...


_UNSUPPORTED = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_NO_DATA",
)
_HINTS = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "install the NVIDIA driver (in a container: add `--gpus all`), or "
    "use --no-gpu for an engine that needs none",
    "NVML_ERROR_DRIVER_NOT_LOADED": "load the driver: see `nvidia-smi` and `dmesg`",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the driver was updated while loaded: reboot the machine",
    "NVML_ERROR_GPU_IS_LOST": "the GPU fell off the bus: reboot the machine, see `dmesg` for Xid errors",
    "NVML_ERROR_RESET_REQUIRED": "reset the GPU or reboot the machine",
    "NVML_ERROR_UNKNOWN": "in a container the device was taken away: recreate it; see `nvidia-smi`",
    "NVML_ERROR_NO_PERMISSION": "this user may not read the GPU: check the permissions of /dev/nvidia*",
}


def _is(error: BaseException, *names: str) -> bool:
    return any(getattr(error, "value", None) == getattr(pynvml, name, "absent") for name in names)


def _typed(function: Callable[P, T]) -> Callable[P, T]:
    """Raise NvmlUnsupported or NvmlFailed, with a next step, for whatever NVML raises."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except pynvml.NVMLError as error:
            kind = NvmlUnsupported if _is(error, *_UNSUPPORTED) else NvmlFailed
            hint = next((hint for name, hint in _HINTS.items() if _is(error, name)), "see `nvidia-smi`")
            raise kind(f"NVML: {error}", hint) from error

    return call


@_typed
def _query(name: str, *args: Any) -> Any:
    """pynvml's function of that name; NvmlUnsupported also where pynvml has none."""
    function = getattr(pynvml, name, None)
    if function is None:
        raise NvmlUnsupported(f"NVML: pynvml has no {name}", "install nvidia-ml-py 13 or later")
    return function(*args)


def _optional(name: str, *args: Any) -> Any:
    try:
        return _query(name, *args)
    except NvmlUnsupported:
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def throttle_names(mask: int) -> tuple[str, ...]:
    """Names of the bits set; an unknown bit as its hexadecimal value."""
    bits = (1 << position for position in range(mask.bit_length()))
    return tuple(THROTTLE_REASONS.get(bit, hex(bit)) for bit in bits if mask & bit)


class NvmlGpu:
    """One physical GPU. Made by `open_gpu`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._identity = GpuIdentity(
            index=_query("nvmlDeviceGetIndex", handle),
            uuid=_text(_query("nvmlDeviceGetUUID", handle)),
            name=_text(_query("nvmlDeviceGetName", handle)),
            memory_total_mib=self.memory().total // MIB,
        )

    def identity(self) -> GpuIdentity:
        return self._identity

    def memory(self) -> GpuMemory:
        info = _optional("nvmlDeviceGetMemoryInfo", self._handle, pynvml.nvmlMemory_v2)
        if info is not None:
            return GpuMemory(int(info.total), int(info.used), int(info.reserved))
        info = _query("nvmlDeviceGetMemoryInfo", self._handle)
        return GpuMemory(int(info.total), int(info.used), None)

    def memory_used_mib(self) -> int:
        return self.memory().used // MIB

    def processes(self) -> tuple[GpuProcess, ...]:
        """Compute processes; empty also where the driver does not tell."""
        found = _optional("nvmlDeviceGetComputeRunningProcesses", self._handle) or ()
        return tuple(
            GpuProcess(int(p.pid), None if p.usedGpuMemory is None else int(p.usedGpuMemory) // MIB) for p in found
        )

    def mig_enabled(self) -> bool:
        mode = _optional("nvmlDeviceGetMigMode", self._handle)
        return mode is not None and mode[0] == 1

    def _get(self, name: str, *args: Any) -> Any:
        return _optional(f"nvmlDeviceGet{name}", self._handle, *args)

    def _throttle(self) -> int | None:
        mask: int | None = self._get("CurrentClocksEventReasons")
        if mask is None:  # drivers before 535
            mask = self._get("CurrentClocksThrottleReasons")
        return mask

    def sample(self) -> TelemetryRow:
        """One telemetry row, stamped as the energy counter is read. NvmlFailed when the GPU is gone."""
        t_ns = time.monotonic_ns()
        energy = self._get("TotalEnergyConsumption")
        use = self._get("UtilizationRates")
        return TelemetryRow(
            t_ns=t_ns,
            energy_mj=energy,
            power_mw=self._get("PowerUsage"),
            sm_clock_mhz=self._get("ClockInfo", pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._get("ClockInfo", pynvml.NVML_CLOCK_MEM),
            temperature_c=self._get("Temperature", pynvml.NVML_TEMPERATURE_GPU),
            memory_used_mib=self.memory_used_mib(),
            gpu_utilisation_pct=None if use is None else int(use.gpu),
            throttle_reasons=self._throttle(),
        )

    def facts(self) -> dict[str, Any]:
        """What a reviewer asks for about the card and its driver, JSON-able; None: not reported."""
        get = self._get
        memory, throttle, ecc = self.memory(), self._throttle(), get("EccMode")
        limits, capability = get("PowerManagementLimitConstraints"), get("CudaComputeCapability")
        cuda, vbios, persistence = (
            _optional("nvmlSystemGetCudaDriverVersion_v2"),
            get("VbiosVersion"),
            get("PersistenceMode"),
        )
        return {
            **self._identity.model_dump(),
            "memory_reserved_mib": None if memory.reserved is None else memory.reserved // MIB,
            "memory_used_mib": memory.used // MIB,
            "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
            "vbios": None if vbios is None else _text(vbios),
            "driver": _text(_query("nvmlSystemGetDriverVersion")),
            "cuda_driver": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            "power_limit_mw": get("EnforcedPowerLimit"),
            "power_limit_default_mw": get("PowerManagementDefaultLimit"),
            "power_limit_max_mw": None if limits is None else limits[1],
            "sm_clock_max_mhz": get("MaxClockInfo", pynvml.NVML_CLOCK_SM),
            "memory_clock_max_mhz": get("MaxClockInfo", pynvml.NVML_CLOCK_MEM),
            "sm_clock_application_mhz": get("ApplicationsClock", pynvml.NVML_CLOCK_SM),
            "temperature_c": get("Temperature", pynvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": None if throttle is None else list(throttle_names(throttle)),
            "ecc": None if ecc is None else bool(ecc[0]),
            "mig": self.mig_enabled(),
            "persistence_mode": None if persistence is None else bool(persistence),
            "compute_mode": get("ComputeMode"),
            "pcie_generation": get("CurrPcieLinkGeneration"),
            "pcie_generation_max": get("MaxPcieLinkGeneration"),
            "pcie_width": get("CurrPcieLinkWidth"),
            "pcie_width_max": get("MaxPcieLinkWidth"),
            "gpus_in_machine": _query("nvmlDeviceGetCount"),
            "processes": [process.pid for process in self.processes()],
        }


def open_gpu(selector: str | None = None) -> NvmlGpu:
    """The GPU of that index or UUID; None: the first of CUDA_VISIBLE_DEVICES, or of the machine.

    Raises PreflightError when there is no driver, no such GPU, or it is (or the selector names) a MIG slice.
    """
    origin = "--gpu"
    if selector is None and "CUDA_VISIBLE_DEVICES" in os.environ:
        origin, selector = "CUDA_VISIBLE_DEVICES", os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0].strip()
    if selector is not None and selector.startswith("MIG-"):
        raise PreflightError(
            f"{origin} {selector}: a MIG slice has no energy counter and shares its card",
            "switch MIG off (`nvidia-smi -i INDEX -mig 0`) and give a whole GPU with --gpu",
        )
    _query("nvmlInit")
    count = int(_query("nvmlDeviceGetCount"))
    if count == 0:
        raise PreflightError("NVML finds no GPU", "give the container a GPU (`--gpus all`), or use --no-gpu")
    gpu = NvmlGpu(_handle(selector, count, origin))
    if gpu.mig_enabled():
        index = gpu.identity().index
        raise PreflightError(
            f"GPU {index} ({gpu.identity().uuid}) is in MIG mode: its slices have no energy counter",
            f"switch it off with `nvidia-smi -i {index} -mig 0`, or choose another GPU with --gpu",
        )
    return gpu


def _handle(selector: str | None, count: int, origin: str) -> Any:
    if selector is None:
        return _query("nvmlDeviceGetHandleByIndex", 0)
    if selector.isdecimal() and int(selector) < count:
        return _query("nvmlDeviceGetHandleByIndex", int(selector))
    if selector.startswith("GPU-"):
        try:
            return _query("nvmlDeviceGetHandleByUUID", selector)
        except NvmlFailed as error:
            if not _is(error.__cause__ or error, "NVML_ERROR_NOT_FOUND", "NVML_ERROR_INVALID_ARGUMENT"):
                raise
    raise PreflightError(
        f"{origin} {selector!r}: no such GPU; this machine has {count}",
        f"give an index from 0 to {count - 1} or a UUID (see `nvidia-smi -L`) with --gpu",
    )
