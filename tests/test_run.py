"""The whole life of a run and a prime, on the stand-in engine: files, verdicts, failures, stops."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from analysis.formats.bench import BenchResult, parse_bench
from analysis.formats.run_record import GpuIdentity, RunIdentity, RunRecord, TraceEnd
from runner import nvml
from runner.config import parse_config
from runner.context import RunContext
from runner.errors import PreflightError, StoreError
from runner.launcher import EngineHost
from runner.nvml import GpuMemory, NvmlFailed, TelemetryRow, open_gpu
from runner.processes import cpu_shares, marked
from runner.run import execute_run
from runner.signals import StopRequest
from runner.watch import Stopped
from tests.fake_nvml import FakeNvml
from tests.make_config import toml

TIMEOUTS = "timeouts = {start_s = 20.0, silence_s = 10.0, bench_s = 20.0, stop_s = 5.0}\nmax_model_len"

Make = Callable[..., RunContext]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A factory of contexts for the stand-in at 200 times its speed."""
    monkeypatch.setenv("CAMPAIGN_STANDIN_SPEED", "200")

    def build(kind: str = "run", arm: str = "graphs", edit: tuple[str, str] = ("", ""), **changes: Any) -> RunContext:
        config = parse_config(toml(("max_model_len", TIMEOUTS), edit), Path("campaign.toml"))
        run_id = f"7b.{arm}.small.r1" if kind == "run" else f"7b.{arm}.prime"
        directory = tmp_path / f"{run_id}.p1a1.partial"
        directory.mkdir()
        identity: dict[str, Any] = {"profile": "small", "repetition": 1, "block_id": "7b.small.r1", "seed": 7}
        identity |= {"order_in_block": 0, "block_arms": (arm, "graphs" if arm == "eager" else "eager")}
        values: dict[str, Any] = {
            "identity": RunIdentity(
                kind=kind,
                run_id=run_id,
                folder=f"{run_id}.p1a1",
                campaign="test",
                model="7b",
                arm=arm,
                pass_number=1,
                attempt=1,
                sitting_id="s",
                machine_id="m",
                cache_id="c",
                **(identity if kind == "run" else {}),
            ),
            "config": config,
            "gpu": None,
            "arm_flags": tuple(config.arms[arm].flags),
            "host": EngineHost("python3", (), tmp_path / "models", tmp_path / "cache", config.engine.kind),
            "directory": directory,
            "marker": f"{uuid.uuid4().hex}:{run_id}",
            "on_phase": lambda _: None,
            "stop_requested": StopRequest(),
        }
        return RunContext(**(values | changes))

    return build


def names(ctx: RunContext) -> set[str]:
    return {path.name for path in ctx.directory.iterdir()}


def columns(path: Path) -> dict[str, str]:
    return {name: kind for name, kind, *_ in duckdb.sql(f"DESCRIBE SELECT * FROM '{path}'").fetchall()}


def test_a_run_is_valid_and_its_folder_complete(make: Make) -> None:
    ctx = make()
    record = execute_run(ctx)
    assert record.status == "valid"
    assert {reason.code for reason in record.reasons} == {"cold_compile_cache"}  # no prime came before
    assert record.step_trace_end == TraceEnd(complete=True, dropped=0, errors=0)
    assert names(ctx) == {
        "run.json",
        "server.log.gz",
        "bench.json",
        "bench.log.gz",
        "requests.parquet",
        "metrics_before.txt.gz",
        "metrics_after.txt.gz",
        "steps.parquet",
    }
    assert RunRecord.model_validate_json((ctx.directory / "run.json").read_bytes()) == record
    for name, digest in record.files_sha256.items():
        assert hashlib.sha256((ctx.directory / name).read_bytes()).hexdigest() == digest
    assert set(record.files_sha256) == names(ctx) - {"run.json"}
    assert record.engine.simulated
    assert record.telemetry_absent_reason
    assert not marked(ctx.marker)


def test_the_timeline_is_in_order(make: Make) -> None:
    timeline = execute_run(make()).timeline
    order = [
        "run_begin_ns",
        "exec_ns",
        "healthy_ns",
        "probe_sent_ns",
        "probe_first_token_ns",
        "probe_end_ns",
        "go_ns",
        "window_begin_ns",
        "window_end_ns",
        "bench_exit_ns",
        "stop_ns",
        "exited_ns",
        "run_end_ns",
    ]
    moments = [getattr(timeline, name) for name in order]
    assert None not in moments
    assert moments == sorted(moments)
    assert timeline.exec_ns < timeline.bench_ready_ns <= timeline.go_ns  # type: ignore[operator]
    assert (timeline.run_end_ns - timeline.bench_exit_ns) / 1e9 < 3  # type: ignore[operator]


def test_parquet_types_are_those_documented(make: Make) -> None:
    ctx = make()
    execute_run(ctx)
    text = (Path(__file__).parent.parent / "docs/result-files.md").read_text()
    for file in ("requests", "steps"):
        section = text[text.index(f"`{file}.parquet`:") :].split("\n\n")[0]
        documented = dict(re.findall(r"`(\w+)` ([A-Z]+(?:\[\])?)", section))
        assert columns(ctx.directory / f"{file}.parquet") == documented
    rows = duckdb.sql(f"SELECT count(*), sum(output_tokens), max(len(itl_us)) FROM '{ctx.directory}/requests.parquet'")
    assert rows.fetchall()[0] == (40, 640, 15)
    steps = duckdb.sql(f"SELECT min(step), max(step) + 1 - count(*) FROM '{ctx.directory}/steps.parquet'")
    assert steps.fetchall()[0] == (0, 0)


def test_the_engine_log_has_no_request_lines(make: Make) -> None:
    ctx = make()
    execute_run(ctx)
    log = gzip.decompress((ctx.directory / "server.log.gz").read_bytes())
    assert b"Application startup complete." in log
    assert b"HTTP/1.1" not in log


def test_a_prime_has_no_load(make: Make) -> None:
    ctx = make("prime", "eager")
    record = execute_run(ctx)
    assert (record.status, record.reasons) == ("valid", ())
    assert record.num_gpu_blocks_natural == record.num_gpu_blocks
    assert record.num_gpu_blocks
    assert record.bench_argv == ()
    assert (record.num_prompts, record.warmup_requests, record.timeline.go_ns) == (None, None, None)
    assert names(ctx) == {"run.json", "server.log.gz", "metrics_before.txt.gz", "steps.parquet"}


def test_a_block_count_takes_effect_and_the_natural_one_is_kept(make: Make) -> None:
    record = execute_run(make(arm_flags=("--num-gpu-blocks-override", "5000")))
    assert record.serve_argv[-2:] == ("--num-gpu-blocks-override", "5000")
    assert record.num_gpu_blocks == 5000
    assert (record.num_gpu_blocks_natural or 0) > 5000


FAULTS = {
    "crash_at_load": ("failed", "out_of_memory"),
    "die_mid_bench": ("failed", "died_in_window"),
    "refuse_requests": ("invalid", "failed_requests"),
    "short_outputs": ("invalid", "short_output"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_engine_faults_are_recorded(make: Make, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv("CAMPAIGN_STANDIN_FAULT", fault)
    ctx = make()
    record = execute_run(ctx)
    status, expected = FAULTS[fault]
    assert record.status == status, record
    if status == "failed":
        assert record.failure_class == expected
        assert record.failure_message
    else:
        assert expected in {reason.code for reason in record.reasons}
    assert "server.log.gz" in names(ctx)
    assert not marked(ctx.marker)


def test_a_hanging_start_names_phase_and_last_line(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_STANDIN_FAULT", "hang_in_capture")
    ctx = make(edit=("silence_s = 10.0", "silence_s = 1.5"))
    record = execute_run(ctx)
    assert (record.status, record.failure_class) == ("failed", "start_silent")
    assert "phase capturing" in (record.failure_message or "")
    assert "last line: " in (record.failure_message or "")
    assert not marked(ctx.marker)


def test_a_slow_start_times_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_STANDIN_SPEED", "1")
    record = execute_run(make(edit=("start_s = 20.0", "start_s = 1.0")))
    assert (record.status, record.failure_class) == ("failed", "start_timeout")


def test_a_load_that_does_not_end_times_out(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_STANDIN_SPEED", "50")
    ctx = make(edit=("bench_s = 20.0", "bench_s = 0.1"))
    record = execute_run(ctx)
    assert (record.status, record.failure_class) == ("failed", "bench_timeout")
    assert not marked(ctx.marker)


def test_a_bad_flag_fails_at_once_and_is_classified(make: Make) -> None:
    record = execute_run(make(arm_flags=("--no-such-flag",)))
    assert (record.status, record.failure_class) == ("failed", "bad_flag")
    assert "--no-such-flag" in (record.failure_message or "")


def test_an_orphan_of_the_engine_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_STANDIN_FAULT", "leave_orphan")
    seen = []
    ctx = make()

    def on_phase(phase: str) -> None:
        if phase == "stopping":
            seen.append(len(marked(ctx.marker)))

    record = execute_run(make("prime", on_phase=on_phase, marker=ctx.marker))
    assert record.status == "valid"
    assert seen == [2]  # engine and orphan
    assert not marked(ctx.marker)


@pytest.mark.parametrize("how", ["request", "interrupt"])
@pytest.mark.parametrize("phase", ["starting", "probing", "measuring", "stopping"])
def test_a_stop_at_any_phase_leaves_nothing(make: Make, how: str, phase: str) -> None:
    stop = StopRequest()

    def on_phase(name: str) -> None:
        if name == phase and how == "interrupt":
            raise KeyboardInterrupt
        if name == phase:
            stop.set()

    ctx = make(on_phase=on_phase, stop_requested=stop)
    begin = time.monotonic()
    if (how, phase) == ("request", "stopping"):  # all is measured: the run is completed first
        assert execute_run(ctx).status == "valid"
    else:
        with pytest.raises(Stopped if how == "request" else KeyboardInterrupt):
            execute_run(ctx)
        assert "run.json" not in names(ctx)
    assert time.monotonic() - begin < 15
    assert not marked(ctx.marker)


def test_a_missing_engine_python_is_a_preflight_error(make: Make, tmp_path: Path) -> None:
    ctx = make()
    host = EngineHost("/no/such/python", (), tmp_path, tmp_path, "vllm")
    with pytest.raises(PreflightError, match="/no/such/python"):
        execute_run(make("prime", host=host))
    assert not marked(ctx.marker)


def test_a_full_disk_is_a_store_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise StoreError("cannot write run.json: No space left on device")

    monkeypatch.setattr("runner.finish.write_atomic", full)
    ctx = make("prime")
    with pytest.raises(StoreError, match="No space left"):
        execute_run(ctx)
    assert not marked(ctx.marker)


class FakeGpu:
    """A GPU whose memory readings are scripted; the last one stays."""

    def __init__(self, *used_mib: int, lost_at_sample: int | None = None, pids: tuple[int, ...] = ()) -> None:
        self.pids = pids
        self.used = list(used_mib)
        self.samples = 0
        self.lost_at_sample = lost_at_sample

    def identity(self) -> GpuIdentity:
        return GpuIdentity(index=0, uuid="GPU-1", name="Test GPU", memory_total_mib=81559)

    def memory(self) -> GpuMemory:
        return GpuMemory(total=80 * 2**30, used=0, reserved=0)

    def memory_used_mib(self) -> int:
        return self.used.pop(0) if len(self.used) > 1 else self.used[0]

    def processes(self) -> list[int]:
        return list(self.pids)

    def sample(self) -> TelemetryRow:
        self.samples += 1
        if self.samples == self.lost_at_sample:
            raise NvmlFailed("NVML: Unknown Error", "recreate the container")
        return TelemetryRow(time.monotonic_ns(), energy_mj=10**10 + self.samples, power_mw=None)

    def facts(self) -> dict[str, Any]:
        return {}


def test_a_run_with_a_gpu_has_telemetry_from_before_the_start_to_after_the_stop(make: Make) -> None:
    ctx = make(gpu=FakeGpu(100, 5000, 300))
    record = execute_run(ctx)
    timeline = record.timeline
    assert (record.status, record.idle_gpu_memory_mib, record.telemetry_absent_reason) == ("valid", 100, None)
    assert record.gpu_processes_before == ()
    assert timeline.exited_ns < timeline.memory_freed_ns  # type: ignore[operator]
    section = (Path(__file__).parent.parent / "docs/result-files.md").read_text().split("`telemetry.parquet`:")[1]
    path = ctx.directory / "telemetry.parquet"
    assert columns(path) == dict(re.findall(r"`(\w+)` ([A-Z]+)", section.split("\n\n")[0]))
    row = duckdb.sql(f"SELECT min(t_ns), max(t_ns), max(energy_mj) > 2^32, count(power_mw) FROM '{path}'").fetchall()[0]
    assert row[0] < timeline.exec_ns
    assert row[1] > timeline.memory_freed_ns
    assert row[2:] == (True, 0)
    assert record.engine_environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert "telemetry.csv" not in names(ctx)


def test_the_load_says_how_busy_its_cpus_were_and_what_the_host_took_of_them(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = [SimpleNamespace(idle=20.0, iowait=10.0, steal=4.0), SimpleNamespace(idle=60.0, iowait=0.0, steal=1.0)]
    calls: list[bool] = []
    monkeypatch.setattr("psutil.cpu_times_percent", lambda percpu: calls.append(percpu) or shares)
    assert cpu_shares({0}) == (70.0, 4.0)
    monkeypatch.setenv("CAMPAIGN_STANDIN_SPEED", "60")
    record = execute_run(make())
    assert (record.status, record.cpu_busy_pct, record.cpu_stolen_pct) == ("valid", 55.0, 2.5)
    assert calls == [True] * 3  # once here, at go and at the client's end
    monkeypatch.setattr("psutil.cpu_times_percent", lambda **_: [SimpleNamespace(idle=20.0)])
    assert cpu_shares(None) == (80.0, None)


def test_a_process_that_uses_the_gpu_in_the_window_makes_the_run_invalid(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through NVML: the engine's own process does not count, one that is not of this run does."""
    fake = FakeNvml()
    fake.used = 0
    fake.readings["nvmlDeviceGetCurrentClocksEventReasons"] = 0
    monkeypatch.setattr(nvml, "pynvml", fake)
    monkeypatch.setattr("runner.telemetry.LOOK_EVERY", 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CAMPAIGN_STANDIN_SPEED", "60")
    foreign: list[int] = []

    def on_phase(phase: str) -> None:
        if phase in ("probing", "measuring", "stopping"):
            engine = [process.pid for process in marked(ctx.marker) if "bench" not in process.cmdline()]
            pids = engine + (foreign if phase == "measuring" else [])
            fake.readings["nvmlDeviceGetComputeRunningProcesses"] = [SimpleNamespace(pid=pid) for pid in pids]

    for foreign, status in (([], "valid"), ([1], "invalid")):
        fake.readings["nvmlDeviceGetComputeRunningProcesses"] = []
        ctx = make(arm="eager" if foreign else "graphs", gpu=open_gpu(), on_phase=on_phase)
        record = execute_run(ctx)
        assert (record.status, record.gpu_processes_in_window) == (status, tuple(foreign))
    (reason,) = (r for r in record.reasons if r.severity == "invalid")
    assert (reason.code, reason.evidence) == ("foreign_processes", "processes 1 in the window")


def test_a_busy_gpu_fails_the_run_before_the_engine_starts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.run.MEMORY_WAIT_S", 0.2)
    record = execute_run(make(gpu=FakeGpu(40_000, pids=(4711,))))
    assert (record.status, record.failure_class) == ("failed", "gpu_busy")
    assert "4711" in (record.failure_message or "")
    assert record.timeline.exec_ns is None


def test_memory_that_stays_in_use_after_the_stop_fails_the_run(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.run.MEMORY_WAIT_S", 0.3)
    record = execute_run(make("prime", gpu=FakeGpu(100, 60_000, pids=(4711,))))
    assert (record.status, record.failure_class) == ("failed", "gpu_memory_not_freed")
    assert "60000 MiB" in (record.failure_message or "")
    assert "4711" in (record.failure_message or "")
    assert record.timeline.memory_freed_ns is None


def test_a_gpu_lost_during_the_run_fails_it_and_keeps_what_was_sampled(make: Make) -> None:
    ctx = make("prime", gpu=FakeGpu(100, lost_at_sample=3))
    record = execute_run(ctx)
    assert (record.status, record.failure_class) == ("failed", "telemetry_lost")
    assert "Unknown Error" in (record.failure_message or "")
    rows = duckdb.sql(f"SELECT count(*) FROM '{ctx.directory}/telemetry.parquet'").fetchall()[0]
    assert rows == (2,)


def test_a_stop_while_waiting_for_the_gpu(make: Make) -> None:
    ctx = make(gpu=FakeGpu(40_000))
    ctx.stop_requested.set()
    with pytest.raises(Stopped):
        execute_run(ctx)


def test_an_engine_of_another_version_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.http.engine_version", lambda _: "0.24.0")
    record = execute_run(make("prime"))
    assert (record.status, record.failure_class) == ("failed", "engine_version")
    assert "0.24.0" in (record.failure_message or "")


def test_a_truncated_result_is_kept_and_the_run_failed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(data: bytes) -> BenchResult:
        return parse_bench(data[:-100])

    monkeypatch.setattr("runner.finish.parse_bench", cut)
    ctx = make()
    record = execute_run(ctx)
    assert (record.status, record.failure_class) == ("failed", "output_unreadable")
    assert "bench.raw.json" in names(ctx)


def test_a_client_that_ends_early_is_noticed_while_the_engine_starts(make: Make) -> None:
    ctx = make()
    argv = EngineHost.bench_argv

    class Broken(EngineHost):
        def bench_argv(self, *args: Any, **options: Any) -> list[str]:
            return [*argv(self, *args, **options), "--no-such-flag"]

    host = Broken("python3", (), ctx.host.models, ctx.host.cache, "stand-in")
    record = execute_run(dataclasses.replace(ctx, host=host))
    assert (record.status, record.failure_class) == ("failed", "bad_flag")
    assert "bench client ended with status 2" in (record.failure_message or "")
