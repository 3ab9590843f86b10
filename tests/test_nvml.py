"""The GPU through NVML: what is read, what is None, and what each failure says."""

from __future__ import annotations

import json

import pytest

from runner import nvml
from runner.errors import PreflightError
from runner.nvml import GpuMemory, NvmlFailed, NvmlUnsupported, open_gpu
from tests.fake_nvml import FakeNvml

TELEMETRY_CALLS = {
    "nvmlDeviceGetTotalEnergyConsumption": "energy_mj",
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetUtilizationRates": "gpu_utilisation_pct",
}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setattr(nvml, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.mark.usefixtures("fake")
def test_a_sample_has_every_reading() -> None:
    row = open_gpu().sample()
    assert row.t_ns > 0
    assert (row.energy_mj, row.power_mw, row.sm_clock_mhz, row.memory_clock_mhz) == (123_456_789, 61_234, 1755, 1593)
    assert (row.temperature_c, row.memory_used_mib, row.gpu_utilisation_pct, row.throttle_reasons) == (41, 4, 7, 0x24)


@pytest.mark.parametrize(("call", "column"), TELEMETRY_CALLS.items())
@pytest.mark.parametrize("error", ["NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION"])
def test_an_unsupported_reading_is_none_and_the_others_stay(fake: FakeNvml, call: str, column: str, error: str) -> None:
    fake.errors[call] = error
    row = open_gpu().sample()
    assert getattr(row, column) is None
    assert row.memory_used_mib == 4
    assert row.power_mw is None if column == "power_mw" else row.power_mw == 61_234


def test_a_zero_reading_stays_zero(fake: FakeNvml) -> None:
    fake.readings["nvmlDeviceGetTotalEnergyConsumption"] = 0
    assert open_gpu().sample().energy_mj == 0


def test_a_lost_gpu_is_an_error_not_a_gap(fake: FakeNvml) -> None:
    gpu = open_gpu()
    fake.errors["nvmlDeviceGetPowerUsage"] = "NVML_ERROR_GPU_IS_LOST"
    with pytest.raises(NvmlFailed) as caught:
        gpu.sample()
    assert not isinstance(caught.value, NvmlUnsupported)
    assert "reboot" in caught.value.hint


def test_a_device_taken_from_the_container_says_to_recreate_it(fake: FakeNvml) -> None:
    gpu = open_gpu()
    fake.errors["nvmlDeviceGetMemoryInfo_v2"] = "NVML_ERROR_UNKNOWN"
    with pytest.raises(NvmlFailed) as caught:
        gpu.memory_used_mib()
    assert "container" in caught.value.hint


@pytest.mark.parametrize(
    ("error", "hint"), [("NVML_ERROR_LIBRARY_NOT_FOUND", "--no-gpu"), ("NVML_ERROR_DRIVER_NOT_LOADED", "driver")]
)
def test_no_driver_is_a_preflight_error_with_a_next_step(fake: FakeNvml, error: str, hint: str) -> None:
    fake.errors["nvmlInit"] = error
    with pytest.raises(PreflightError) as caught:
        open_gpu()
    assert hint in caught.value.hint


def test_the_real_library_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml.pynvml, "_LoadNvmlLibrary", _no_library, raising=True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(PreflightError) as caught:
        open_gpu()
    assert "--no-gpu" in caught.value.hint


def _no_library() -> None:
    raise nvml.pynvml.NVMLError(nvml.pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def test_no_gpu_at_all(fake: FakeNvml) -> None:
    fake.gpus = 0
    with pytest.raises(PreflightError, match="no GPU"):
        open_gpu()


def test_the_first_of_several_is_taken_without_a_selector(fake: FakeNvml) -> None:
    fake.gpus = 4
    assert open_gpu().identity().index == 0


@pytest.mark.parametrize("selector", ["2", "GPU-0000-2"])
def test_selection_by_index_and_by_uuid(fake: FakeNvml, selector: str) -> None:
    fake.gpus = 4
    identity = open_gpu(selector).identity()
    assert (identity.index, identity.uuid, identity.memory_total_mib) == (2, "GPU-0000-2", 81559)


def test_cuda_visible_devices_chooses_unless_a_gpu_is_named(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.gpus = 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert open_gpu().identity().index == 3
    assert open_gpu("1").identity().index == 1


@pytest.mark.parametrize("selector", ["4", "-1", "", "GPU-none", "NoDevFiles"])
def test_an_unknown_gpu_is_named(fake: FakeNvml, selector: str) -> None:
    fake.gpus = 4
    with pytest.raises(PreflightError, match="no such GPU") as caught:
        open_gpu(selector)
    assert repr(selector) in caught.value.message


def test_mig_by_name_and_by_mode(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.readings["nvmlDeviceGetMigMode"] = [1, 1]
    with pytest.raises(PreflightError, match="MIG mode") as caught:
        open_gpu()
    assert "-mig 0" in caught.value.hint
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with pytest.raises(PreflightError, match="CUDA_VISIBLE_DEVICES MIG-1234"):
        open_gpu()


def test_a_card_that_knows_no_mig(fake: FakeNvml) -> None:
    fake.errors["nvmlDeviceGetMigMode"] = "NVML_ERROR_NOT_SUPPORTED"
    assert open_gpu().facts()["mig"] is False


@pytest.mark.usefixtures("fake")
def test_memory_leaves_out_what_the_driver_reserves() -> None:
    assert open_gpu().memory() == GpuMemory(total=81559 * 2**20, used=4 * 2**20, reserved=551 * 2**20)
    assert open_gpu().memory().usable == (81559 - 551) * 2**20


@pytest.mark.usefixtures("fake")
def test_processes() -> None:
    assert open_gpu().processes() == [77, 78]


@pytest.mark.usefixtures("fake")
def test_facts_are_json_and_name_what_a_reviewer_asks_for() -> None:
    facts = json.loads(json.dumps(open_gpu().facts()))
    expected = {
        "name": "NVIDIA H100 PCIe", "vbios": "96.00.61.00.01", "driver": "580.95.05", "cuda_driver": "13.0",
        "power_limit_mw": 350_000, "ecc": True, "mig": False, "persistence_mode": True, "pcie_generation": 5,
        "pcie_width": 16, "compute_capability": "9.0", "throttle_reasons": 0x24,
        "memory_reserved_mib": 551, "processes": [77, 78], "temperature_slowdown_c": 90, "ecc_errors_uncorrected": 0,
        "memory_clock_application_mhz": 1593,
    }  # fmt: skip
    assert {key: facts[key] for key in expected} == expected


def test_facts_that_are_not_reported_are_null(fake: FakeNvml) -> None:
    for name in list(fake.readings):
        if name not in ("nvmlDeviceGetName", "nvmlSystemGetDriverVersion"):
            fake.errors[name] = "NVML_ERROR_NOT_SUPPORTED"
    facts = open_gpu().facts()
    assert facts["power_limit_mw"] is facts["ecc"] is facts["cuda_driver"] is facts["throttle_reasons"] is None
    assert facts["driver"] == "580.95.05"


def test_power_at_rest(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = iter(range(5_000_000, 6_000_000, 7_500))  # 7.5 J a sample
    monkeypatch.setattr(nvml.time, "monotonic_ns", iter(range(0, 10**12, 10**8)).__next__)
    calls = fake.__class__.__getattr__
    monkeypatch.setattr(
        fake.__class__,
        "__getattr__",
        lambda self, name: (lambda *_: next(counter)) if "TotalEnergy" in name else calls(self, name),
    )
    assert open_gpu().idle(3) == {"seconds": 0.3, "counter_mw": 75_000, "sensor_mw": 61_234}


def test_a_counter_that_does_not_move_gives_no_power_at_rest(fake: FakeNvml) -> None:
    assert open_gpu().idle(1)["counter_mw"] is None
    fake.errors |= dict.fromkeys(
        ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"), "NVML_ERROR_NOT_SUPPORTED"
    )
    rest = open_gpu().idle(1)
    assert (rest["counter_mw"], rest["sensor_mw"]) == (None, None)
