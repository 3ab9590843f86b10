"""The GPU, through NVML (`nvidia-ml-py`, imported as pynvml). A reading that the device lacks is None.

`_query` is the one place where NVML's errors become this project's. All calls may be made from any thread.
"""

import os
import time
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pynvml

from analysis.formats.run_record import GpuIdentity
from runner.errors import PreflightError

MIB = 2**20
IDLE_INTERVALS = 30
_UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, pynvml.NVML_ERROR_NO_DATA,
}  # fmt: skip
_UNKNOWN_DEVICE = {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT}
_HINTS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "install the NVIDIA driver (in a container: add `--gpus all`), or "
    "use --no-gpu for an engine that needs none",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the driver: see `nvidia-smi` and `dmesg`",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated while loaded: reboot the machine",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU fell off the bus: reboot the machine, see `dmesg` for Xid errors",
    pynvml.NVML_ERROR_RESET_REQUIRED: "reset the GPU or reboot the machine",
    pynvml.NVML_ERROR_UNKNOWN: "in a container the device was taken away: recreate it; see `nvidia-smi`",
    pynvml.NVML_ERROR_NO_PERMISSION: "this user may not read the GPU: check the permissions of /dev/nvidia*",
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
class GpuMemory:
    """Bytes. `reserved` is the driver's own share, which `used` leaves out."""

    total: int
    used: int
    reserved: int

    @property
    def usable(self) -> int:
        """What a CUDA program sees as the device's total memory."""
        return self.total - self.reserved


def _query(name: str, *args: Any) -> Any:
    """Call pynvml's function of that name. NvmlUnsupported or NvmlFailed, with a next step, if it cannot answer."""
    try:
        return getattr(pynvml, name)(*args)
    except pynvml.NVMLError as error:
        kind = NvmlUnsupported if error.value in _UNSUPPORTED else NvmlFailed
        raise kind(f"NVML: {error}", _HINTS.get(error.value, "see `nvidia-smi`")) from error


def _optional(name: str, *args: Any) -> Any:
    try:
        return _query(name, *args)
    except NvmlUnsupported:
        return None


class Gpu:
    """One physical GPU. Made by `open_gpu`. Every method but `identity` may raise NvmlFailed."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._identity = GpuIdentity(
            index=_query("nvmlDeviceGetIndex", handle),
            uuid=_query("nvmlDeviceGetUUID", handle),
            name=_query("nvmlDeviceGetName", handle),
            memory_total_mib=self.memory().total // MIB,
        )

    def identity(self) -> GpuIdentity:
        return self._identity

    def memory(self) -> GpuMemory:
        info = _query("nvmlDeviceGetMemoryInfo", self._handle, pynvml.nvmlMemory_v2)
        return GpuMemory(int(info.total), int(info.used), int(info.reserved))

    def memory_used_mib(self) -> int:
        return self.memory().used // MIB

    def _get(self, name: str, *args: Any) -> Any:
        return _optional(f"nvmlDeviceGet{name}", self._handle, *args)

    def processes(self) -> list[int] | None:
        """Ids of compute processes (in a container: of the host's); None where the driver does not tell."""
        found = self._get("ComputeRunningProcesses")
        return None if found is None else sorted(int(process.pid) for process in found)

    def mig_enabled(self) -> bool:
        mode = self._get("MigMode")
        return mode is not None and mode[0] == 1

    def sample(self) -> TelemetryRow:
        """One telemetry row, stamped as the energy counter is read."""
        get, t_ns = self._get, time.monotonic_ns()
        energy, use = get("TotalEnergyConsumption"), get("UtilizationRates")
        return TelemetryRow(
            t_ns=t_ns,
            energy_mj=energy,
            power_mw=get("PowerUsage"),
            sm_clock_mhz=get("ClockInfo", pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=get("ClockInfo", pynvml.NVML_CLOCK_MEM),
            temperature_c=get("Temperature", pynvml.NVML_TEMPERATURE_GPU),
            memory_used_mib=self.memory_used_mib(),
            gpu_utilisation_pct=None if use is None else int(use.gpu),
            throttle_reasons=get("CurrentClocksEventReasons"),
        )

    def idle(self, intervals: int = IDLE_INTERVALS) -> dict[str, Any]:
        """The GPU's power, in mW, over a time in which nothing uses it (an interval is 100 ms): by its counter, and its
        sensor's mean reading. None: not reported, or the counter did not move."""
        rows = [self.sample()]
        while len(rows) <= intervals:
            time.sleep(0.1)
            rows.append(self.sample())
        seconds = (rows[-1].t_ns - rows[0].t_ns) / 1e9
        counted = [row.energy_mj for row in rows if row.energy_mj is not None] or [0]
        powers = [row.power_mw for row in rows if row.power_mw is not None]
        moved = counted[-1] - counted[0]
        return {
            "seconds": round(seconds, 3),
            "counter_mw": round(moved / seconds) if moved > 0 else None,
            "sensor_mw": round(fmean(powers)) if powers else None,
        }

    def facts(self) -> dict[str, Any]:
        """What a reviewer asks for about the card and its driver, JSON-able; None: not reported."""
        get, memory = self._get, self.memory()
        ecc, persistence, cuda = get("EccMode"), get("PersistenceMode"), _optional("nvmlSystemGetCudaDriverVersion_v2")
        limits, capability = get("PowerManagementLimitConstraints"), get("CudaComputeCapability")
        return {
            **self._identity.model_dump(),
            "memory_reserved_mib": memory.reserved // MIB,
            "memory_used_mib": memory.used // MIB,
            "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
            "vbios": get("VbiosVersion"),
            "driver": _query("nvmlSystemGetDriverVersion"),
            "cuda_driver": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            "power_limit_mw": get("EnforcedPowerLimit"),
            "power_limit_default_mw": get("PowerManagementDefaultLimit"),
            "power_limit_max_mw": None if limits is None else limits[1],
            "sm_clock_max_mhz": get("MaxClockInfo", pynvml.NVML_CLOCK_SM),
            "memory_clock_max_mhz": get("MaxClockInfo", pynvml.NVML_CLOCK_MEM),
            "sm_clock_application_mhz": get("ApplicationsClock", pynvml.NVML_CLOCK_SM),
            "temperature_c": get("Temperature", pynvml.NVML_TEMPERATURE_GPU),
            "temperature_slowdown_c": get("TemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            "throttle_reasons": get("CurrentClocksEventReasons"),  # bit mask, as in telemetry.parquet
            "memory_clock_application_mhz": get("ApplicationsClock", pynvml.NVML_CLOCK_MEM),
            "ecc_errors_uncorrected": get(
                "TotalEccErrors", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            ),  # since the driver was loaded
            "ecc": None if ecc is None else bool(ecc[0]),
            "mig": self.mig_enabled(),
            "persistence_mode": None if persistence is None else bool(persistence),
            "compute_mode": get("ComputeMode"),
            "pcie_generation": get("CurrPcieLinkGeneration"),
            "pcie_generation_max": get("MaxPcieLinkGeneration"),
            "pcie_width": get("CurrPcieLinkWidth"),
            "pcie_width_max": get("MaxPcieLinkWidth"),
            "gpus_in_machine": _query("nvmlDeviceGetCount"),
            "processes": self.processes(),
        }


def open_gpu(selector: str | None = None) -> Gpu:
    """The GPU of that index or UUID; None: the first of CUDA_VISIBLE_DEVICES, or of the machine.

    Raises PreflightError when there is no driver, no such GPU, or it is (or the selector names) a MIG slice.
    """
    origin = "--gpu"
    if selector is None:
        origin, selector = "CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if selector.startswith("MIG-"):
        raise PreflightError(
            f"{origin} {selector}: a MIG slice has no energy counter and shares its card",
            "switch MIG off (`nvidia-smi -i INDEX -mig 0`) and give a whole GPU with --gpu",
        )
    _query("nvmlInit")
    count = int(_query("nvmlDeviceGetCount"))
    if count == 0:
        raise PreflightError("NVML finds no GPU", "give the container a GPU (`--gpus all`), or use --no-gpu")
    try:
        if selector.isdecimal():
            gpu = Gpu(_query("nvmlDeviceGetHandleByIndex", int(selector)))
        else:
            gpu = Gpu(_query("nvmlDeviceGetHandleByUUID", selector))
    except NvmlFailed as error:
        if getattr(error.__cause__, "value", None) not in _UNKNOWN_DEVICE:
            raise
        raise PreflightError(
            f"{origin} {selector!r}: no such GPU; this machine has {count}",
            f"give an index from 0 to {count - 1} or a UUID (see `nvidia-smi -L`) with --gpu",
        ) from error
    if gpu.mig_enabled():
        index = gpu.identity().index
        raise PreflightError(
            f"GPU {index} ({gpu.identity().uuid}) is in MIG mode: its slices have no energy counter",
            f"switch it off with `nvidia-smi -i {index} -mig 0`, or choose another GPU with --gpu",
        )
    return gpu
