"""The stand-in engine against recorded output of the real one, and its faults."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from analysis.formats.bench import parse_bench
from analysis.formats.failure import classify_failure
from analysis.formats.metrics import Metrics, parse_metrics
from analysis.formats.server_log import ServerLog, missing_facts, parse_server_log
from analysis.formats.steps import parse_steps
from runner.standin.bench import FLAGS, Outcome, result_document
from runner.standin.log import EngineLog
from runner.standin.settings import FAULTS, VllmParser, parse_serve
from tests.recorded import COMPILE_ONLY, EAGER, GRAPHS, GRAPHS_WARM, MATCHED, data, text
from tests.spans import waiting_span

MODEL = "/models/qwen2.5-32b"
COMMON = (
    "--load-format dummy --generation-config vllm --max-model-len 4096 --no-enable-prefix-caching "
    "--cudagraph-metrics --disable-uvicorn-access-log --fail-on-environ-validation --seed 0"
)
BENCH = (
    f"-m runner.standin bench serve --backend openai --model {MODEL} --dataset-name random --ignore-eos "
    "--temperature 0 --seed 0 "
    "--save-result --save-detailed --ready-check-timeout-sec 3600 --disable-tqdm"
).split()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Engine:
    """A stand-in server in a folder; its compile cache is the folder's."""

    def __init__(self, folder: Path, *flags: str, speed: float = 300, fault: str = "", model: str = MODEL):
        self.folder, self.port = folder, free_port()
        self.environment = {
            **os.environ, "CAMPAIGN_STANDIN_SPEED": str(speed), "CAMPAIGN_STANDIN_FAULT": fault,
            "CAMPAIGN_STEPS_FILE": str(folder / "steps.csv"), "VLLM_CACHE_ROOT": str(folder / "cache"),
        }  # fmt: skip
        self.command = [
            sys.executable,
            "-m",
            "runner.standin",
            "serve",
            model,
            *COMMON.split(),
            "--port",
            str(self.port),
        ]
        self.log = (folder / "server.log").open("w+")
        self.process = subprocess.Popen(
            [*self.command, *flags], env=self.environment, stdout=self.log, stderr=subprocess.STDOUT
        )

    def get(self, path: str, body: Any = None) -> tuple[int, bytes]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        if body is not None:
            request.data = json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def ready(self) -> Engine:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.get("/health")[0] == 200:
                    return self
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"not healthy: {self.text()}")

    def text(self) -> str:
        return (self.folder / "server.log").read_text()

    def facts(self) -> ServerLog:
        return parse_server_log(self.text())

    def metrics(self) -> Metrics:
        return parse_metrics(self.get("/metrics")[1].decode())

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(5)
        finally:
            self.process.kill()
            self.log.close()

    def bench(self, *flags: str, go: bytes = b"g") -> dict[str, Any]:
        result = self.folder / "bench.json"
        where = ["--port", str(self.port), "--result-dir", str(self.folder), "--result-filename", result.name]
        run = subprocess.run(
            [sys.executable, *BENCH, *where, *flags], input=go, capture_output=True, timeout=60, check=False
        )
        assert re.search(rb"^campaign: ready \d+$", run.stdout, re.MULTILINE)
        assert run.returncode == (0 if go else 1), run.stderr
        return json.loads(result.read_text()) if result.exists() else {}


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Any]:
    started: list[Engine] = []

    def start(*flags: str, **options: Any) -> Engine:
        started.append(Engine(tmp_path, *flags, **options))
        return started[-1]

    yield start
    for engine in started:
        engine.stop()


SMALL = ("--random-input-len", "64", "--random-output-len", "30", "--num-prompts", "24", "--max-concurrency", "4")


@pytest.mark.parametrize(
    ("flags", "graphs", "compiled", "recorded"),
    [
        ((), True, True, GRAPHS),
        (("--enforce-eager",), False, False, EAGER),
        (("-cc.cudagraph_mode=NONE",), False, True, COMPILE_ONLY),
        (("--num-gpu-blocks-override=2104",), True, True, MATCHED),
    ],
)
def test_log_holds_every_fact_of_a_recorded_one(
    engines: Any, flags: tuple[str, ...], graphs: bool, compiled: bool, recorded: str
) -> None:
    engine = engines(*flags, speed=1000).ready()
    assert engine.stop() == 0
    got, real = engine.facts(), parse_server_log(text(recorded, "server.log"))
    assert missing_facts(got, graphs=graphs, compiled=compiled, gpu=True) == ()
    assert got.simulated
    assert not real.simulated
    same = (
        "vllm_version architecture max_model_len max_num_batched_tokens enforce_eager cudagraph_mode "
        "compile_mode capture_sizes attention_backend model_load_gib graphs_captured_piecewise "
        "graphs_captured_full estimated_graph_gib capture_gib application_started"
    )
    for name in same.split():
        assert getattr(got, name) == getattr(real, name), name
    assert got.capture_s == (None if real.capture_s is None else 0)  # whole seconds, a thousand times faster


@pytest.mark.parametrize(
    ("flags", "recorded"), [((), GRAPHS), (("--enforce-eager",), EAGER), (("-cc.cudagraph_mode=NONE",), COMPILE_ONLY)]
)
def test_durations_of_a_start_are_of_the_scaled_clock(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    recorded: str,
) -> None:
    """Near the recorded ones at a card's speed, and shorter by the factor at others."""

    def start(speed: str) -> ServerLog:
        monkeypatch.setenv("CAMPAIGN_STANDIN_SPEED", speed)
        monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / speed))
        log = EngineLog(parse_serve([MODEL, *COMMON.split(), *flags]))
        for phase in log.phases:
            log.say(phase)
        return parse_server_log("".join(capsys.readouterr()))

    real, card, fast = parse_server_log(text(recorded, "server.log")), start("1"), start("10")
    assert card.capture_s == real.capture_s
    assert fast.capture_s == (None if real.capture_s is None else 1)
    names = "model_load_s dynamo_s inductor_s torch_compile_s profiling_s engine_init_s engine_init_compile_s"
    for name in names.split():
        wanted, got = getattr(real, name), getattr(card, name)
        assert got == (None if wanted is None else pytest.approx(wanted, rel=0.35, abs=0.6)), name
        assert getattr(fast, name) == (None if got is None else pytest.approx(got / 10, abs=0.006)), name


def test_a_start_lasts_as_long_as_its_log_says(engines: Any) -> None:
    begin = time.monotonic()
    engine = engines(speed=50).ready()
    seconds = time.monotonic() - begin
    engine.stop()
    facts = engine.facts()
    assert facts.engine_init_s == pytest.approx(52.2 / 50, abs=0.01)
    assert facts.model_load_s == pytest.approx(1.1 / 50, abs=0.001)
    outside = seconds - facts.engine_init_s - facts.model_load_s
    assert outside > 27 / 50  # imports, processes, API server


def test_compile_cache_is_cold_once(engines: Any) -> None:
    caches = []
    for _ in range(2):
        engine = engines(speed=1000).ready()
        engine.stop()
        caches.append(engine.facts().compile_cache)
    assert caches == ["cold", "warm"]


def _shape(line: str) -> str:
    """A log line without what differs between runs: numbers, paths, lists, dictionaries."""
    line = re.sub(r"^\(\w+ pid=\d+\) ", "", line.rstrip())
    line = re.sub(r"^([A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d ", r"\1 ", line)
    line = re.sub(r"\[[\d, ]*\]|tcp://\S+|http://\S+", "X", line)
    line = re.sub(r"(?<![\w.])/[\w./-]+(?<!\.)", "PATH", line)
    return re.sub(r"[\d][\d,.:]*", "N", line)


def test_log_lines_are_the_engines(engines: Any) -> None:
    for flags in ((), ("--enforce-eager",), ("-cc.cudagraph_mode=NONE", "--num-gpu-blocks-override=2000")):
        engine = engines(*flags).ready()
        engine.bench(*SMALL)
        engine.stop()
        mine = {_shape(line) for line in engine.text().splitlines()}
        runs = (GRAPHS, GRAPHS_WARM, EAGER, MATCHED, COMPILE_ONLY)
        real = {_shape(line) for run in runs for line in text(run, "server.log").splitlines()}
        own = ("SIMULATED", "non-default args:", "with config: model=", "Capturing CUDA graphs")
        strange = {line for line in mine - real if not any(word in line for word in own)}
        strange = {
            line for line in strange if not line.startswith(("INFO [cuda_graph.py", "INFO [launcher.py:N] Route"))
        }
        assert strange == set()


def test_metrics_have_the_engines_names_and_add_up(engines: Any) -> None:
    engine = engines("--num-gpu-blocks-override=500", "--enforce-eager").ready()
    engine.bench(*SMALL)
    metrics = engine.metrics()
    real = {name for name, _, _ in parse_metrics(text(GRAPHS, "metrics.txt")).as_rows()}
    mine = {name for name, _, _ in metrics.as_rows()}
    assert {name for name in mine if name.startswith("vllm:")} <= real
    assert metrics.num_gpu_blocks == 500
    assert metrics.value("vllm:prompt_tokens_total") == 24 * 64
    assert metrics.value("vllm:generation_tokens_total") == 24 * 30
    assert metrics.value("vllm:request_success_total", finished_reason="length") == 24
    assert metrics.value("vllm:prefix_cache_hits_total") == 0
    assert metrics.value("vllm:num_requests_running") == 0


def test_recorded_workload_over_http(engines: Any) -> None:
    engine = engines("--num-gpu-blocks-override=1869", speed=50).ready()
    result = engine.bench("--num-prompts", "500", "--max-concurrency", "64", "--num-warmups", "2")
    metrics = engine.metrics()
    begin = time.monotonic()
    assert engine.stop() == 0
    assert time.monotonic() - begin < 0.5
    assert (result["completed"], result["total_output_tokens"]) == (500, 64000)
    trace = parse_steps((engine.folder / "steps.csv").read_text())
    assert trace.complete
    span = waiting_span(trace.rows)
    assert span is not None
    assert span.steps == pytest.approx(2455, rel=0.01)
    assert span.mean_running == pytest.approx(26.1, rel=0.01)
    assert span.preempted == pytest.approx(55, abs=4)
    assert metrics.value("vllm:num_preemptions_total") == span.preempted
    assert trace.total("generated_tokens") == 502 * 128 == metrics.value("vllm:generation_tokens_total")


def test_bench_result_has_the_keys_of_the_engines(engines: Any) -> None:
    engine = engines("--enforce-eager").ready()
    result = engine.bench(*SMALL)
    real = json.loads(data(GRAPHS, "bench.json"))
    more = re.compile(r"p50_|p90_|.*_e2el_")  # that run asked for them, the runner does not
    assert list(result) == [key for key in real if not more.match(key)]
    for key, value in result.items():
        kinds = (int, float) if isinstance(real[key], int | float) else type(real[key])
        assert isinstance(value, kinds), key
    parsed = parse_bench((engine.folder / "bench.json").read_bytes())
    assert (parsed.completed, parsed.failed) == (24, 0)
    assert all(len(row.itl_us) == 29 and row.ttft_s > 0 and not row.error for row in parsed.requests)


def test_bench_statistics_by_hand() -> None:
    args = VllmParser(FLAGS).parse_args(["--model", "m"])
    outcomes = [
        Outcome(10, 100.0, 0.1, [0.2, 0.4], 3, success=True),
        Outcome(10, 100.0, 0.3, [0.1], 2, success=True),
        Outcome(10, 100.0, error="refused"),
    ]
    result = result_document(args, outcomes, 2.0)
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (2, 1, 5)
    assert result["mean_ttft_ms"] == pytest.approx(200)
    assert result["std_ttft_ms"] == pytest.approx(100)
    assert result["p99_ttft_ms"] == pytest.approx(298)
    assert result["mean_tpot_ms"] == pytest.approx(200)
    assert result["output_throughput"] == 2.5


def test_bench_of_a_dead_server_counts_failures_and_exits_0(tmp_path: Path) -> None:
    class Dead(Engine):
        def __init__(self) -> None:
            self.folder, self.port = tmp_path, free_port()

    result = Dead().bench("--num-prompts", "20", "--max-concurrency", "4")
    real = json.loads(data("cpu-errors", "bench_dead_server.json"))
    same = [key for key, value in real.items() if value in (0, 0.0, 20) and key in result]
    assert {key: result[key] for key in same} == {key: real[key] for key in same}
    assert (result["completed"], result["failed"]) == (0, 20)
    assert result["output_lens"] == [0] * 20
    assert all("ConnectionRefusedError" in error for error in result["errors"])


def test_bench_without_a_go_does_nothing(engines: Any) -> None:
    engine = engines("--enforce-eager").ready()
    assert engine.bench(*SMALL, go=b"") == {}
    assert engine.metrics().value("vllm:generation_tokens_total") == 0


def test_equal_seeds_give_equal_prompts() -> None:
    from runner.standin.bench import _prompts

    args = ["--num-prompts", "50", "--random-range-ratio", "0.3", "--seed"]
    first, again, other = (_prompts(VllmParser(FLAGS).parse_args([*args, seed])) for seed in ("1", "1", "2"))
    assert first == again != other
    assert all(len(prompt.split()) == size and 716 <= size <= 1332 for prompt, size, _ in first)
    assert len({output for _, _, output in first}) > 10


def test_completions(engines: Any) -> None:
    engine = engines("--enforce-eager").ready()
    assert json.loads(engine.get("/version")[1]) == {"version": "0.23.0"}
    assert engine.get("/nowhere")[0] == 404
    request = {"model": MODEL, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    for prompt in ("one two three", [5, 6, 7]):
        events = engine.get("/v1/completions", request | {"prompt": prompt})[1].decode().strip().split("\n\n")
        assert events[-1] == "data: [DONE]"
        documents = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
        assert [bool(document["choices"]) for document in documents] == [True] * 4 + [False]
        assert [document["choices"][0]["finish_reason"] for document in documents[:-1]] == [None] * 3 + ["length"]
        assert documents[-1]["usage"] == {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4}
    for body, status in (
        ({"prompt": "a", "model": "other"}, 404),
        ({"prompt": "a " * 5000, "stream": True}, 400),
        ({"prompt": "a"}, 400),
        ({"stream": True}, 400),
        ([], 400),
    ):
        assert engine.get("/v1/completions", body)[0] == status


def test_a_client_that_leaves_frees_its_place(engines: Any) -> None:
    engine = engines("--enforce-eager", speed=60).ready()
    body = json.dumps({"prompt": "a b", "max_tokens": 4000, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", engine.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    deadline = time.monotonic() + 5
    while engine.metrics().value("vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert engine.metrics().value("vllm:num_requests_running") == 0
    assert engine.metrics().value("vllm:request_success_total", finished_reason="abort") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_at_once_during_the_start(engines: Any, number: signal.Signals) -> None:
    engine = engines(speed=20)
    while "SIMULATED" not in engine.text() and engine.process.poll() is None:
        time.sleep(0.02)
    begin = time.monotonic()
    engine.process.send_signal(number)
    assert engine.process.wait(5) == 0
    assert time.monotonic() - begin < 0.5
    trace = parse_steps((engine.folder / "steps.csv").read_text())
    assert trace.complete
    assert trace.rows == ()


def test_imports_stay_light() -> None:
    code = "import sys, runner.standin.server, runner.standin.bench; print(' '.join(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "duckdb", "jinja2", "click", "rich", "psutil", "numpy"} & set(modules)


def test_kv_pool_follows_graphs_budget_and_model() -> None:
    def blocks(model: str, *flags: str) -> int:
        return parse_serve([model, "--max-model-len", "4096", *flags]).natural_blocks

    eager, graphs = blocks("qwen2.5-32b", "--enforce-eager"), blocks("qwen2.5-32b")
    trimmed = blocks("qwen2.5-32b", "--max-cudagraph-capture-size=64")
    assert eager == pytest.approx(2390, rel=0.01)
    assert graphs == pytest.approx(2155, rel=0.01)
    assert eager - trimmed == pytest.approx(51, abs=3)
    assert blocks("qwen2.5-32b", "--gpu-memory-utilization", "0.9") < graphs
    assert blocks("qwen2.5-7b") * 16 == pytest.approx(1_020_080, rel=0.05)
    assert parse_serve(["m", "-cc.cudagraph_mode=NONE"]).scheduler.capture_sizes == ()
    assert parse_serve(["m", "--cudagraph-capture-sizes", "1", "2", "3"]).scheduler.capture_sizes == (1, 2, 3)


def test_bad_flag_as_the_engine(engines: Any) -> None:
    engine = engines("--no-such-flag", "3")
    assert engine.process.wait(10) == 2
    last = text("cpu-errors", "e_badflag.err").strip().splitlines()[-1]
    assert engine.text().strip().splitlines()[-1] == last
    assert classify_failure(engine.text()) is not None


def test_port_taken_as_the_engine(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        command = [sys.executable, "-m", "runner.standin", "serve", MODEL, "--port", str(holder.getsockname()[1])]
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, cwd=Path.cwd())
    assert run.returncode == 1
    assert "OSError: [Errno 98] Address already in use" in run.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--max-model-len", "99999"),
            "User-specified max_model_len (99999) is greater than the derived max_model_len",
        ),
        (("--num-gpu-blocks-override=100",), "To serve at least one request with the model's max seq len (4096)"),
        (("--gpu-memory-utilization", "0.5"), "No available memory for the cache blocks."),
    ],
)
def test_settings_that_the_engine_refuses(engines: Any, flags: tuple[str, ...], message: str) -> None:
    engine = engines(*flags)
    assert engine.process.wait(10) == 1
    assert message in engine.text()
    assert classify_failure(engine.text()) is not None


def test_unknown_faults_and_speeds_are_refused(engines: Any) -> None:
    assert engines(fault="no_such_fault").process.wait(10) == 1
    engine = engines(speed=0)
    assert engine.process.wait(10) == 1
    assert "CAMPAIGN_STANDIN_SPEED=0" in engine.text()


def test_fault_crash_at_load(engines: Any) -> None:
    engine = engines(fault="crash_at_load")
    assert engine.process.wait(10) == 1
    found = classify_failure(engine.text())
    assert found is not None
    assert found[0] == "out_of_memory"


def test_fault_hang_in_capture(engines: Any) -> None:
    engine = engines(fault="hang_in_capture", speed=1000)
    deadline = time.monotonic() + 10
    while "GPU KV cache size" not in engine.text() and time.monotonic() < deadline:
        time.sleep(0.05)
    size = len(engine.text())
    time.sleep(0.5)
    assert len(engine.text()) == size
    assert engine.process.poll() is None
    with pytest.raises(OSError, match="refused"):
        engine.get("/health")
    assert engine.stop() == 0


def test_fault_die_mid_bench(engines: Any) -> None:
    engine = engines("--enforce-eager", fault="die_mid_bench").ready()
    result = engine.bench(*SMALL)
    assert 0 < result["completed"] < 24
    assert result["failed"] == 24 - result["completed"]
    assert engine.process.wait(10) == 0
    assert "EngineDeadError" in engine.text()
    assert not engine.facts().shutdown_requested


def test_fault_refuse_requests(engines: Any) -> None:
    result = engines("--enforce-eager", fault="refuse_requests").ready().bench(*SMALL)
    assert (result["completed"], result["failed"]) == (18, 6)
    assert set(result["errors"]) == {"", "Service Unavailable"}


def test_fault_short_outputs(engines: Any) -> None:
    result = engines("--enforce-eager", fault="short_outputs").ready().bench(*SMALL)
    assert result["failed"] == 0
    assert sorted(result["output_lens"]) == [10] * 4 + [30] * 20


def test_fault_leave_orphan(engines: Any) -> None:
    engine = engines("--enforce-eager", fault="leave_orphan").ready()
    (orphan,) = psutil.Process(engine.process.pid).children()
    try:
        assert engine.stop() == 0
        assert orphan.is_running()
        assert os.getsid(orphan.pid) != os.getsid(0)
    finally:
        orphan.kill()


def test_every_fault_has_a_test() -> None:
    assert all(f"def test_fault_{name}" in Path(__file__).read_text() for name in FAULTS)
