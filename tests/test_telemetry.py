"""The telemetry sampler: its file, its pace, and what it says when it has to stop."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from runner.nvml import NvmlFailed, TelemetryRow
from runner.telemetry import COLUMNS, Telemetry


class FakeGpu:
    """Answers samples; raises `error` at sample number `fail_at`."""

    def __init__(self, fail_at: int | None = None, error: Exception | None = None, slow_s: float = 0.0) -> None:
        self.fail_at, self.error, self.slow_s, self.count = fail_at, error, slow_s, 0
        self.pids: list[int] | None = []

    def sample(self) -> TelemetryRow:
        self.count += 1
        time.sleep(self.slow_s)
        if self.count == self.fail_at and self.error:
            raise self.error
        return TelemetryRow(t_ns=time.monotonic_ns(), energy_mj=self.count, power_mw=0)

    def processes(self) -> list[int] | None:
        return self.pids


def rows(path: Path) -> list[list[str]]:
    return [line.split(",") for line in path.read_text().splitlines()]


def sampled_until(telemetry: Telemetry, samples: int) -> None:
    deadline = time.monotonic() + 10
    while telemetry.samples < samples and telemetry.reason is None and time.monotonic() < deadline:
        time.sleep(0.005)


def test_the_columns_are_the_documented_ones() -> None:
    documented = (Path(__file__).parent.parent / "docs" / "result-files.md").read_text()
    section = documented[documented.index("`telemetry.parquet`: `t_ns`") :]
    positions = [section.index(f"`{column}`") for column in COLUMNS]
    assert positions == sorted(positions)
    assert len(COLUMNS) == 9


def test_a_missing_reading_is_empty_and_zero_is_zero(tmp_path: Path) -> None:
    telemetry = Telemetry(FakeGpu(), tmp_path / "t.csv")  # type: ignore[arg-type]
    telemetry.start()
    telemetry.stop()
    assert rows(tmp_path / "t.csv")[1][1:] == ["1", "0", *[""] * 6]


def test_it_samples_at_its_pace_until_stopped(tmp_path: Path) -> None:
    telemetry = Telemetry(FakeGpu(), tmp_path / "t.csv", interval_s=0.02)  # type: ignore[arg-type]
    telemetry.start()
    sampled_until(telemetry, 5)
    begun = time.monotonic_ns()
    telemetry.stop()
    telemetry.stop()
    header, *samples = rows(tmp_path / "t.csv")
    assert tuple(header) == COLUMNS
    assert len(samples) == telemetry.samples >= 6
    assert [int(row[1]) for row in samples] == list(range(1, len(samples) + 1))
    assert int(samples[-1][0]) > begun - 1_000_000_000
    gaps = [int(b[0]) - int(a[0]) for a, b in pairwise(samples[:-1])]
    assert min(gaps) > 10_000_000
    assert telemetry.reason is None


def test_it_ends_with_a_sample_after_the_stop(tmp_path: Path) -> None:
    telemetry = Telemetry(FakeGpu(), tmp_path / "t.csv", interval_s=60)  # type: ignore[arg-type]
    telemetry.start()
    sampled_until(telemetry, 1)
    stopped_ns = time.monotonic_ns()
    telemetry.stop()
    assert time.monotonic_ns() - stopped_ns < 5_000_000_000
    assert int(rows(tmp_path / "t.csv")[-1][0]) >= stopped_ns


def test_a_slow_device_does_not_make_a_burst(tmp_path: Path) -> None:
    telemetry = Telemetry(FakeGpu(slow_s=0.03), tmp_path / "t.csv", interval_s=0.01)  # type: ignore[arg-type]
    telemetry.start()
    time.sleep(0.2)
    telemetry.stop()
    assert telemetry.samples <= 9


@pytest.mark.parametrize(
    ("error", "reason"),
    [(NvmlFailed("NVML: Unknown Error", "recreate it"), "NVML: Unknown Error"), (ValueError("odd"), "ValueError: odd")],
)
def test_a_lost_gpu_stops_it_with_a_reason_and_keeps_the_rest(tmp_path: Path, error: Exception, reason: str) -> None:
    telemetry = Telemetry(FakeGpu(4, error), tmp_path / "t.csv", interval_s=0.001)  # type: ignore[arg-type]
    telemetry.start()
    sampled_until(telemetry, 99)
    telemetry.stop()
    assert telemetry.reason == f"{reason} after 3 samples"
    assert len(rows(tmp_path / "t.csv")) == 4


def test_a_full_disk_stops_it_with_a_reason() -> None:
    telemetry = Telemetry(FakeGpu(), Path("/dev/full"), interval_s=0.001)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No space left"):
        telemetry.start()
    telemetry.stop()


def test_stop_without_start_writes_nothing(tmp_path: Path) -> None:
    Telemetry(FakeGpu(), tmp_path / "t.csv").stop()  # type: ignore[arg-type]
    assert not (tmp_path / "t.csv").exists()


ENGINE, OTHER = 100, 200


@pytest.mark.parametrize(
    ("own", "phases", "foreign"),
    [
        ({ENGINE, 101}, [[], [ENGINE], [ENGINE], [ENGINE]], ()),
        ({ENGINE}, [[], [ENGINE], [ENGINE, OTHER], [ENGINE]], (OTHER,)),
        ({ENGINE}, [[], [ENGINE, OTHER], [ENGINE, OTHER], [ENGINE]], (OTHER,)),
        ({ENGINE}, [[], [ENGINE, OTHER], [ENGINE], [ENGINE]], ()),  # gone before the window
        ({ENGINE}, [[], [ENGINE], [ENGINE], [ENGINE, OTHER]], ()),  # came after it
        # ids of the host, seen from a container: the engine's are those that were there when it became healthy
        ({7}, [[], [ENGINE], [ENGINE], [ENGINE]], ()),
        ({7}, [[], [ENGINE], [ENGINE, OTHER], [ENGINE]], (OTHER,)),
        (set(), [[], [], [], []], ()),
        ({ENGINE}, [None, None, None, None], None),
    ],
)
def test_processes_in_the_window_that_are_not_the_engine_s(
    tmp_path: Path, own: set[int], phases: list[list[int] | None], foreign: tuple[int, ...] | None
) -> None:
    """Phases: before the start, starting, the window, after it."""
    gpu, moments = FakeGpu(), []
    telemetry = Telemetry(gpu, tmp_path / "t.csv")  # type: ignore[arg-type]
    for pids in phases:
        gpu.pids = pids
        moments.append(time.monotonic_ns())
        telemetry._look()
    assert telemetry.foreign(own, *moments[2:3], *moments[2:]) == foreign


def test_processes_are_looked_for_while_it_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.telemetry.LOOK_EVERY", 2)
    gpu = FakeGpu()
    gpu.pids = [OTHER]
    telemetry = Telemetry(gpu, tmp_path / "t.csv", interval_s=0.001)  # type: ignore[arg-type]
    begun = time.monotonic_ns()
    telemetry.start()
    sampled_until(telemetry, 3)
    telemetry.stop()
    assert telemetry.foreign(set(), begun, begun, time.monotonic_ns()) == (OTHER,)
