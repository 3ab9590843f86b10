"""A pynvml with as many GPUs as wanted, whose readings and errors a test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

CODES = {
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_INVALID_ARGUMENT": 2,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_NOT_FOUND": 6,
    "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_UNKNOWN": 999,
}
H100 = {  # a whole H100 as NVML reports it; memory in bytes
    "nvmlDeviceGetName": "NVIDIA H100 PCIe",
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetTotalEnergyConsumption": 123_456_789,
    "nvmlDeviceGetPowerUsage": 61_234,
    "nvmlDeviceGetClockInfo": {1: 1755, 2: 1593},
    "nvmlDeviceGetTemperature": {0: 41},
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=7, memory=3),
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x20,
    "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=78), SimpleNamespace(pid=77)],
    "nvmlDeviceGetVbiosVersion": "96.00.61.00.01",
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetEnforcedPowerLimit": 350_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 350_000,
    "nvmlDeviceGetPowerManagementLimitConstraints": [200_000, 350_000],
    "nvmlDeviceGetMaxClockInfo": {1: 1755, 2: 1593},
    "nvmlDeviceGetApplicationsClock": {1: 1755, 2: 1593},
    "nvmlDeviceGetTemperatureThreshold": {1: 90},
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlSystemGetDriverVersion": "580.95.05",
    "nvmlSystemGetCudaDriverVersion_v2": 13000,
}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """Stands in for the module. `errors[function]`: name of its error; `readings[function]`: its answer."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1, 2, 0, 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def __init__(self, gpus: int = 1) -> None:
        self.gpus = gpus
        self.readings: dict[str, Any] = dict(H100)
        self.errors: dict[str, str] = {}
        self.calls: list[str] = []
        self.total, self.used, self.reserved = 81559 * 2**20, 4 * 2**20, 551 * 2**20
        for name, value in CODES.items():
            setattr(self, name, value)

    def _check(self, name: str) -> None:
        self.calls.append(name)
        if name in self.errors:
            raise NVMLError(CODES[self.errors[name]])

    def nvmlInit(self) -> None:
        self._check("nvmlInit")

    def nvmlDeviceGetCount(self) -> int:
        self._check("nvmlDeviceGetCount")
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._check("nvmlDeviceGetHandleByIndex")
        if index >= self.gpus:
            raise NVMLError(CODES["NVML_ERROR_INVALID_ARGUMENT"])
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        self._check("nvmlDeviceGetHandleByUUID")
        for index in range(self.gpus):
            if uuid == self.nvmlDeviceGetUUID(index):
                return index
        raise NVMLError(CODES["NVML_ERROR_NOT_FOUND"])

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-0000-{handle}"

    def nvmlDeviceGetMemoryInfo(self, _handle: int, version: int | None = None) -> SimpleNamespace:
        self._check("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo")
        reserved = {"reserved": self.reserved} if version else {}
        return SimpleNamespace(total=self.total, used=self.used, **reserved)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name not in self.readings:
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self._check(name)
            value = self.readings[name]
            return value[args[1]] if isinstance(value, dict) else value

        return call
