"""What went wrong for people who measured serving engines, case by case: the whole kind must be handled.

Each input is made for its case from recorded output of the engine (tests/recorded) and goes through the code that a
campaign uses: parsers, gates, the runner's processes, store, loop, command line, load and report.
"""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pytest
from click.testing import CliRunner

from analysis.db import connect
from analysis.formats.bench import parse_bench
from analysis.formats.failure import FAILURES, classify_failure
from analysis.formats.metrics import parse_metrics
from analysis.formats.run_record import Reason
from analysis.formats.server_log import missing_facts, parse_server_log
from analysis.formats.steps import HEADER
from analysis.gates import Evidence, judge
from analysis.load import _BENCH, load
from analysis.validate import judge_results
from report.render import render
from runner import nvml
from runner.campaign import EXIT_OK
from runner.cli import main
from runner.config import Config, load_config
from runner.config_model import TimeoutsSection
from runner.errors import ConfigError, EngineFailed, PreflightError, StoreError
from runner.launcher import EngineHost
from runner.nvml import open_gpu
from runner.plan import build_plan
from runner.processes import Process
from runner.run import execute_run
from runner.store import read_records, write_atomic
from runner.watch import Watch, death
from tests import make_store, recorded
from tests.fake_nvml import FakeNvml
from tests.test_campaign_loop import Script, sit
from tests.test_gates import after, all_failed, bench, changed, gpu_run, no_padding, telemetry
from tests.test_run import FakeGpu
from tests.torture import write_config

HEAD = "(EngineCore pid=7) ERROR 11-29 18:30:08 [core.py:1195] "


def invalid(evidence: Evidence) -> dict[str, Reason]:
    """Reasons for which the run does not count, by code."""
    return {reason.code: reason for reason in judge(evidence) if reason.severity == "invalid"}


def query(database: Path, sql: str) -> list[tuple[Any, ...]]:
    with connect(database) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The recorded runs as a results folder."""
    return make_store.recorded_store(tmp_path / "results")


def rewrite(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change a file of a finished run, as a runner that saw it so would have left it."""
    data = change((folder / name).read_bytes())
    (folder / name).write_bytes(data)
    record = json.loads((folder / "run.json").read_bytes())
    record["files_sha256"][name] = hashlib.sha256(data).hexdigest()
    (folder / "run.json").write_text(json.dumps(record))


def with_scalars(**values: Any) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps(json.loads(data) | values).encode()


def set_aside(store: Path, folder: str, tmp_path: Path) -> str:
    """Why the load leaves this run out; '' if it counts."""
    database = tmp_path / "results.duckdb"
    load(store, database)
    ((why,),) = query(database, f"SELECT coalesce(set_aside, '') FROM runs WHERE folder = '{folder}'")
    return str(why)


# -- the client's result


def test_case_01_a_client_that_exits_0_with_nothing_but_failures() -> None:
    """The result file of the real client against a dead server: its exit status was 0."""
    reasons = invalid(all_failed(gpu_run()))
    assert reasons["no_successful_requests"].evidence.startswith("completed 0, failed ")
    assert reasons["no_successful_requests"].advice


def test_case_02_an_error_in_the_stream_counted_as_success() -> None:
    """No error text, none failed, but one answer is shorter than asked for."""
    evidence = bench(gpu_run(), {"output_tokens": 37})
    assert evidence.bench is not None
    assert (evidence.bench.failed, {r.error for r in evidence.bench.requests}) == (0, {""})
    assert "request 0 has 37 tokens, asked for 128" in invalid(evidence)["short_output"].evidence


def test_case_03_a_dead_engine_answers_fast_with_no_tokens() -> None:
    run = gpu_run()
    assert run.bench is not None
    rows = tuple(row._replace(output_tokens=0, itls=0, itl_sum_us=0, itl_least_us=0) for row in run.bench.requests)
    dead = dataclasses.replace(run.bench, scalars=run.bench.scalars | {"total_output_tokens": 0}, requests=rows)
    reasons = invalid(dataclasses.replace(run, bench=dead))
    assert reasons["no_successful_requests"].evidence == "completed 500, failed 0, output tokens 0"


def test_case_04_refused_requests_make_the_rest_look_fast(store: Path, tmp_path: Path) -> None:
    """One in twenty refused: the run is left out of every figure, is counted, and is shown with its reason."""
    folder = "32b.eager.sustained.r1.p1a1"
    assert set_aside(store, folder, tmp_path) == ""
    rewrite(store / "runs" / folder, "bench.json", with_scalars(completed=475, failed=25))
    assert "failed_requests" in set_aside(store, folder, tmp_path)
    database = tmp_path / "results.duckdb"
    ((attempts, aside),) = query(database, "SELECT count(*), count(set_aside) FROM runs WHERE kind = 'run'")
    assert (attempts, aside) == (5, 5), "its block is incomplete now, so the others' pairs are gone too"
    text = next(path for path in render(database, tmp_path / "out") if path.suffix == ".md").read_text()
    assert folder.replace("_", "\\_") in text
    assert "failed\\_requests" in text


@pytest.mark.parametrize("change", [{"completed": 499}, {"completed": 480, "failed": 0}, {"num_prompts": 501}])
def test_case_05_requests_that_are_neither_done_nor_failed(change: dict[str, int]) -> None:
    fields = {key: value for key, value in change.items() if key == "num_prompts"}
    scalars = {key: value for key, value in change.items() if key != "num_prompts"}
    assert "request_count_mismatch" in invalid(changed(bench(gpu_run(), **scalars), **fields))


def test_case_07_times_of_0_from_empty_answers() -> None:
    reasons = invalid(bench(gpu_run(), {"ttft_s": 0.0}))
    assert "zero_or_nonfinite_latency" in reasons


def test_case_08_a_run_without_one_success_is_no_crash(store: Path, tmp_path: Path) -> None:
    """Judged, loaded and reported: its figures are absent, not 0 and not an exception."""
    assert invalid(dataclasses.replace(all_failed(gpu_run()), before=None, after=None, steps=None, log=None))
    dead = parse_bench(recorded.data("cpu-errors", "bench_dead_server.json"))
    assert dead.window_s is None
    folder = store / "runs" / "32b.eager.sustained.r1.p1a1"
    rewrite(folder, "bench.json", lambda _: json.dumps(dead.scalars).encode())
    make_store.write_parquet(folder / "requests.parquet", [row[:8] for row in dead.requests])
    rewrite(folder, "requests.parquet", lambda data: data)
    assert "no_successful_requests" in set_aside(store, folder.name, tmp_path)
    assert query(tmp_path / "results.duckdb", "SELECT count(*) FROM effects WHERE 'eager' IN (arm_a, arm_b)") == [(0,)]
    assert render(tmp_path / "results.duckdb", tmp_path / "out")


def test_case_09_prompts_served_from_the_cache(tmp_path: Path) -> None:
    """Nine tokens in ten from the prefix cache is no measurement; and no two repetitions send the same prompts."""
    reasons = invalid(after(gpu_run(), prefix_cache_hits_total=470_000))
    assert re.match(r"470000 of \d+ prompt tokens", reasons["prefix_cache_hits"].evidence)
    plan = build_plan(load_config(write_config(tmp_path, 40)), ["published"])
    seeds = {(block.profile, block.repetition): block.seed for block in plan.blocks}
    for profile in {profile for profile, _ in seeds}:
        own = [seed for (name, _), seed in seeds.items() if name == profile]
        assert len(set(own)) == len(own)
    assert all(len({run.seed for run in block.runs()}) == 1 for block in plan.blocks), "the arms of a block share them"


@pytest.mark.parametrize(("asked", "sent"), [(10_000, 5_827), (1024, 5 * 1024)])
def test_case_10_prompts_of_another_length_than_asked(asked: int, sent: int) -> None:
    run = gpu_run()
    assert run.bench is not None
    rows = tuple(row._replace(input_tokens=sent) for row in run.bench.requests)
    drifted = dataclasses.replace(
        run.bench, scalars=run.bench.scalars | {"total_input_tokens": 500 * sent}, requests=rows
    )
    reasons = invalid(changed(dataclasses.replace(run, bench=drifted), input_tokens=asked))
    assert f"{sent} tokens, asked for {asked}" in reasons["input_length_drift"].evidence


# -- the results folder


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(write_config(tmp_path, 40))


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted((root / "runs").rglob("*")) if p.is_file()}


def test_case_11_a_half_written_result_costs_its_own_run_alone(config: Config, tmp_path: Path) -> None:
    sit(config, tmp_path, Script())
    root = tmp_path / "results"
    victim = "runs/7b.graphs.small.r3.p1a1/run.json"
    (root / victim).write_text((root / victim).read_text()[:200])
    before = contents(root)
    again = Script()
    assert sit(config, tmp_path, again).exit_code == EXIT_OK
    assert again.folders == ["7b.graphs.small.r3.p1a1"]
    assert {name: data for name, data in contents(root).items() if name != victim} == {
        name: data for name, data in before.items() if name != victim
    }


@pytest.mark.parametrize("operation", ["write", "fsync", "rename"])
def test_case_12_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path, operation: str) -> None:
    path = tmp_path / "campaign.json"
    write_atomic(path, "old")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half(self: Path, text: str, **_: Any) -> None:
        self.write_bytes(text.encode()[:2])
        raise full

    patches = {
        "write": mock.patch.object(Path, "write_text", half),
        "fsync": mock.patch("os.fsync", side_effect=full),
        "rename": mock.patch.object(Path, "replace", side_effect=full),
    }
    with patches[operation], pytest.raises(StoreError, match=r"campaign\.json: No space left on device"):
        write_atomic(path, "new text")
    assert path.read_text() == "old"


def test_case_12_a_full_disk_ends_the_command_with_a_status_and_a_next_step(tmp_path: Path) -> None:
    config, results = write_config(tmp_path, 4), tmp_path / "results"
    with mock.patch("runner.store.os.fsync", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
        done = CliRunner().invoke(
            main, ["run", "--config", str(config), "--results", str(results), "--cache", str(tmp_path / "cache")]
        )
    assert done.exit_code == 2
    assert "No space left on device" in done.output
    assert "next: free space" in done.output


def test_case_13_a_killed_campaign_goes_on_at_the_next_run_and_mixes_nothing(config: Config, tmp_path: Path) -> None:
    class Dead(BaseException):
        pass

    first = Script()

    def die(_: Any) -> None:
        if len([f for f in first.folders if "prime" not in f]) == 8:
            raise Dead

    first.before = die
    with pytest.raises(Dead):
        sit(config, tmp_path, first)
    done = [r.folder for r in read_records(tmp_path / "results")[0] if r.kind == "run"]
    assert len(done) == 7
    config.path.write_text(config.path.read_text().replace("output_tokens = 4", "output_tokens = 5"))
    with pytest.raises(ConfigError, match="output_tokens"):
        sit(load_config(config.path), tmp_path, Script())
    rest = Script()
    assert sit(config, tmp_path, rest).exit_code == EXIT_OK
    assert rest.folders[0] == first.folders[-1], "the run that was cut off"
    assert len(rest.folders) == 33
    assert not set(rest.folders) & set(done)


# -- the engine and its GPU


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_STANDIN_SPEED", "500")


def campaign_on(gpu: Any, tmp_path: Path) -> PreflightError:
    """The error that ends a campaign of real runs on this GPU."""
    config = load_config(write_config(tmp_path, 4))
    with mock.patch("runner.campaign.collect_provenance", return_value={}), pytest.raises(PreflightError) as caught:
        sit(config, tmp_path, execute_run, gpu=gpu)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.usefixtures("fast")
def test_case_14_memory_still_held_after_the_stop_ends_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's process holds 100 GiB: every run after it would be disturbed, so none is started."""
    monkeypatch.setattr("runner.run.MEMORY_WAIT_S", 0.3)
    error = campaign_on(FakeGpu(100, 104 * 1024, pids=(4711,)), tmp_path)
    assert "106496 MiB of GPU memory are still in use" in error.message
    assert "by processes 4711" in error.message
    assert [r.failure_class for r in read_records(tmp_path / "results")[0]] == ["gpu_memory_not_freed"]


def ended(text: str, tmp_path: Path) -> EngineFailed:
    """What the runner makes of an engine that says this and ends."""
    script = tmp_path / "said"
    script.write_text(text)
    process = Process(
        "engine", ["/bin/sh", "-c", 'cat "$1"; exit 1', "sh", str(script)], dict(os.environ), tmp_path / "log"
    )
    while process.poll() is None:
        time.sleep(0.01)
    try:
        return death(process, "starting", "engine_died")
    finally:
        process.stop(0.0)


def test_case_15_memory_that_others_hold_is_a_busy_gpu_and_no_timeout(tmp_path: Path) -> None:
    said = "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired GPU memory use"
    failure = ended(
        f"{HEAD}{said} (0.9, 42.64 GiB).\n{HEAD}RuntimeError: Engine core initialization failed.\n", tmp_path
    )
    assert failure.failure_class == "gpu_busy"
    assert "31.44/47.38 GiB" in failure.message
    assert "nvidia-smi" in failure.hint


def test_case_16_a_silent_start_names_its_phase_and_last_line(tmp_path: Path) -> None:
    """The recorded log of a start, cut at the capture of graphs, then nothing."""
    text = recorded.text(recorded.GRAPHS, "server.log")
    cut = text[: text.index("Capturing CUDA graphs")].rpartition("\n")[0] + "\n"
    (tmp_path / "said").write_text(cut)
    hanging = ["/bin/sh", "-c", 'cat "$1"; exec sleep 60', "sh", str(tmp_path / "said")]
    process = Process("engine", hanging, dict(os.environ), tmp_path / "log")
    timeouts = TimeoutsSection(start_s=30, silence_s=1, bench_s=30, stop_s=1)
    try:
        with pytest.raises(EngineFailed) as caught:
            Watch(threading.Event(), process, lambda _: None).until_healthy(20001, timeouts)
    finally:
        process.stop(0.0)
    assert caught.value.failure_class == "start_silent"
    assert "phase capturing" in caught.value.message
    assert cut.strip().splitlines()[-1][-60:] in caught.value.message


@pytest.mark.parametrize(
    ("line", "renamed", "fact"),
    [
        ("GPU KV cache size: ", "GPU KV cache room: ", "kv_tokens"),
        ("Graph capturing finished in ", "Graphs done in ", "capture_s"),
        ("Available KV cache memory: ", "Memory for KV: ", "available_kv_gib"),
        ("init engine (profile", "engine ready (profile", "engine_init_s"),
    ],
)
def test_case_18_a_renamed_line_of_the_log_is_an_error_and_no_gap(line: str, renamed: str, fact: str) -> None:
    text = recorded.text(recorded.GRAPHS, "server.log")
    assert line in text
    evidence = dataclasses.replace(gpu_run(), log=parse_server_log(text.replace(line, renamed)))
    assert fact in invalid(evidence)["log_format_unknown"].evidence


def test_case_18_a_renamed_metric_is_an_error_and_numbers_may_have_commas() -> None:
    text = recorded.text(recorded.GRAPHS, "metrics.txt").replace("vllm:num_preemptions", "vllm:preemptions")
    assert "metrics_missing" in invalid(dataclasses.replace(gpu_run(), after=parse_metrics(text)))
    line = "(EngineCore pid=1) INFO 11-29 17:32:18 [kv_cache_utils.py:1740] GPU KV cache size: 2,042,016 tokens\n"
    assert parse_server_log(line).kv_tokens == 2_042_016


def test_case_19_no_padding_table_is_unknown_padding_and_not_0() -> None:
    (reason,) = judge(no_padding(gpu_run()))
    assert (reason.code, reason.severity) == ("padding_not_reported", "warning")
    text = recorded.text(recorded.GRAPHS, "server.log")
    once, twice = parse_server_log(text), parse_server_log(text + text)
    assert once.padding_rows
    assert [2 * row.count for row in once.padding_rows] == [row.count for row in twice.padding_rows]


def test_case_20_a_counter_that_the_card_lacks_is_absent_and_the_rest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    fake.errors["nvmlDeviceGetTotalEnergyConsumption"] = "NVML_ERROR_NOT_SUPPORTED"
    monkeypatch.setattr(nvml, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    row = open_gpu().sample()
    assert row.energy_mj is None
    assert None not in (row.power_mw, row.sm_clock_mhz, row.temperature_c, row.memory_used_mib)
    reasons = judge(telemetry(gpu_run(), source=None, window_j=None, window_integrated_j=None))
    assert [(r.code, r.severity) for r in reasons] == [("energy_unsupported", "warning")]


def test_case_22_a_counter_that_stands_still_gives_no_energy(tmp_path: Path) -> None:
    """Equal readings over 3 s: the run's energy is absent in the database, its other figures stay."""
    assert "energy_counter_static" in [r.code for r in judge(telemetry(gpu_run(), counter_still_s=3.0))]
    assert judge(telemetry(gpu_run(), counter_still_s=2.9)) == ()
    root = make_store.synthetic_store(tmp_path / "results", repetitions=1, edges=False, arms=("graphs", "eager"))
    folder = root / "runs" / "32b.eager.sustained.r1.p1a1"
    path = folder / "telemetry.parquet"
    rows = duckdb.sql(f"SELECT t_ns, 7_000_000, * EXCLUDE (t_ns, energy_mj) FROM '{path}'").fetchall()
    make_store.write_parquet(path, rows)
    rewrite(folder, path.name, lambda data: data)
    load(root, tmp_path / "results.duckdb")
    sql = f"SELECT window_j, absent FROM energy WHERE folder = '{folder.name}'"
    assert query(tmp_path / "results.duckdb", sql) == [(None, "energy_counter_static")]
    (verdict,) = [v for v in judge_results(root) if v.folder.name == folder.name]
    assert (verdict.status, [r.code for r in verdict.reasons]) == ("valid", ["energy_counter_static"])


@pytest.mark.parametrize("named", ["MIG-4a5b", "MIG-GPU-1/2/0"])
def test_case_23_a_slice_of_a_gpu_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setattr(nvml, "pynvml", FakeNvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    with pytest.raises(PreflightError, match="MIG") as caught:
        open_gpu()
    assert caught.value.hint


@pytest.mark.usefixtures("fast")
def test_case_24_a_gpu_taken_away_during_a_run_ends_the_campaign(tmp_path: Path) -> None:
    error = campaign_on(FakeGpu(100, lost_at_sample=3), tmp_path)
    (record,) = read_records(tmp_path / "results")[0]
    assert (record.status, record.failure_class) == ("failed", "telemetry_lost")
    assert "Unknown Error" in error.message
    assert "in a container, recreate it" in error.message


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver "
        "/ cuda driver combination",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on "
        "non supported HW",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your driver",
    ],
)
def test_case_25_a_driver_that_does_not_fit_is_named_and_ends_the_campaign(said: str, tmp_path: Path) -> None:
    failure = ended(f"{HEAD}{said}\n", tmp_path)
    assert failure.failure_class == "driver_mismatch"
    assert "update the driver" in failure.hint
    assert FAILURES["driver_mismatch"].then == "stop"


@pytest.mark.parametrize(
    "said",
    [
        'could not select device driver "" with capabilities: [[gpu]]',
        'could not select device driver "nvidia" with capabilities: [[gpu]]',
        "unknown or invalid runtime name: nvidia",
        "Unknown runtime specified nvidia",
        "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open",
        "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=0",
    ],
)
def test_case_26_a_container_engine_without_gpus_is_told_in_one_line(said: str) -> None:
    found = classify_failure(f"Error response from daemon: {said}")
    assert found is not None
    assert found[0] == "container_runtime_missing"
    assert "nvidia-ctk runtime configure" in found[1]
    assert "\n" not in found[1]


def test_case_28_a_model_that_is_not_here_is_named_with_its_revision_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineHost, "ask_engine", lambda *_: {"version": "0.23.0"})
    host = EngineHost("python3", (), tmp_path / "models", tmp_path / "cache", "vllm")
    config = load_config(write_config(tmp_path, 4))
    with pytest.raises(PreflightError, match="model 7b") as caught:
        host.check(config)
    assert f"tools/make_models.py {tmp_path / 'models'}` (3 MB)" in caught.value.hint, "no weights are needed"
    assert "hf download" not in caught.value.hint
    config.path.write_text(config.path.read_text().replace('"dummy"', '"hub"'))
    with pytest.raises(PreflightError, match="model 7b") as caught:
        host.check(load_config(config.path))
    told = "`campaign fetch` (all of Qwen/Qwen2.5-7B-Instruct at a09a35458c702b33eeacc393d103063234e8bc28)"
    assert told in caught.value.hint


def test_case_28_all_missing_models_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineHost, "ask_engine", lambda *_: {"version": "0.23.0"})
    host = EngineHost("python3", (), tmp_path / "models", tmp_path / "cache", "vllm")
    text = write_config(tmp_path, 4).read_text()
    model = text[text.index("[[model]]") : text.index("[arm.graphs]")]
    for name, revision in (("32b", "9" * 40), ("3b", "8" * 40)):
        more = model.replace('"7b"', f'"{name}"').replace("7B-", f"{name.upper()}-")
        more = more.replace("qwen2.5-7b", name)
        text = text.replace("[arm.graphs]", re.sub("[0-9a-f]{40}", revision, more) + "[arm.graphs]")
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text("{}")
    text = text.replace('weights = "dummy"\ndirectory = "32b"', 'weights = "hub"\ndirectory = "32b"')
    text = text.replace('directory = "3b"', 'directory = "3b"\ntokenizer = "tok-3b"')
    (tmp_path / "campaign.toml").write_text(text)
    with pytest.raises(PreflightError) as caught:
        host.check(load_config(tmp_path / "campaign.toml"))
    assert re.findall(r"model (\w+): .*?(config\.json|weights|tokenizer)", caught.value.message) == [
        ("32b", "weights"),
        ("3b", "tokenizer"),
        ("7b", "config.json"),
    ]
    told = caught.value.hint.split(": ", 1)[1].split("; ")
    assert [re.sub(r"(\d)\1{39}", r"\1…", text.replace(str(tmp_path), "")) for text in told] == [
        "`campaign fetch` (all of Qwen/Qwen2.5-32B-Instruct at 9…)",
        "`hf download Qwen/Qwen2.5-3B-Instruct --revision 8… --include 'tokenizer*' --local-dir /models/tok-3b`",
        "`python tools/make_models.py /models` (3 MB)",
    ]


def test_a_failed_run_whose_metrics_were_cut_off_is_listed_as_failed(tmp_path: Path) -> None:
    root, arms = make_store.write_header(tmp_path / "results"), ("graphs", "eager")
    for arm in arms:
        make_store.synthetic_run(root, "7b", arm, "sustained", 1, arms)
    folder = root / "runs" / "7b.eager.sustained.r1.p1a1"
    record = json.loads((folder / "run.json").read_text())
    cut = gzip.compress(b'# TYPE vllm:x counter\nvllm:x{engine="0')
    (folder / "metrics_after.txt.gz").write_bytes(cut)
    record["files_sha256"]["metrics_after.txt.gz"] = hashlib.sha256(cut).hexdigest()
    failure = {"status": "failed", "failure_class": "output_unreadable", "failure_message": "/metrics after: cut off"}
    (folder / "run.json").write_text(json.dumps(record | failure))
    assert {v.folder.name: v.status for v in judge_results(root)}[folder.name] == "failed"
    lost = load(root, tmp_path / "results.duckdb").lost
    assert "1 failed: output_unreadable" in lost
    assert "1 unreadable" not in lost
    rows = dict(query(tmp_path / "results.duckdb", "SELECT folder, set_aside FROM runs"))
    assert rows[folder.name] == "failed: output_unreadable"
    (folder / "run.json").write_text(json.dumps(record))
    assert {v.folder.name: v.status for v in judge_results(root)}[folder.name] == "unreadable"
    said = str(load(root, tmp_path / "results.duckdb"))
    validate = "(next: the report's table of runs set aside; `campaign validate`)"
    assert f"1 unreadable: runs/{folder.name} {validate}" in said


# -- the fixtures themselves


def test_case_31_every_field_that_is_read_is_in_what_the_engine_wrote() -> None:
    """Recorded files, not files that somebody thinks it writes: each name that the code looks for is in them."""
    for folder in (*recorded.GPU_RUNS, recorded.CPU):
        assert set(_BENCH.values()) <= json.loads(recorded.data(folder, "bench.json")).keys()
        graphs = folder in (recorded.GRAPHS, recorded.GRAPHS_WARM, recorded.MATCHED)
        facts = parse_server_log(recorded.text(folder, "server.log"))
        compiled = folder != recorded.EAGER and folder != recorded.CPU
        assert missing_facts(facts, graphs=graphs, compiled=compiled, gpu=folder != recorded.CPU) == ()
    assert recorded.text(recorded.CPU, "steps.csv").startswith(HEADER)
    names = {sample.name for sample in parse_metrics(recorded.text(recorded.CPU, "metrics_after.txt")).samples}
    source = "".join(p.read_text() for p in (Path(__file__).parent.parent / "analysis").rglob("*.py"))
    looked_for = set(re.findall(r'"(vllm:\w+)"', source))
    assert looked_for
    assert looked_for <= names, looked_for - names


# -- what a wrong report would show


def test_swapped_labels_turn_the_sign_of_the_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models that differ in nothing but which arm is the slow one."""
    root, arms = make_store.write_header(tmp_path / "results"), ("graphs", "eager")
    for model, speed in (("7b", {"graphs": 1.0, "eager": 1.08}), ("32b", {"graphs": 1.08, "eager": 1.0})):
        monkeypatch.setattr(make_store, "SPEED", make_store.SPEED | speed)
        for repetition in (1, 2):
            for arm in arms:
                make_store.synthetic_run(root, model, arm, "sporadic", repetition, arms)
    load(root, tmp_path / "results.duckdb")
    sql = "SELECT model, ratio.mean FROM effects WHERE metric = 'tpot_ms' AND (arm_a, arm_b) = ('graphs', 'eager')"
    ratios = dict(query(tmp_path / "results.duckdb", sql))
    assert ratios["7b"] < 1 < ratios["32b"]
