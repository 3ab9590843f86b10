"""Child processes: own group, stopped for good, found by marker, ended when the runner dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner.config import Config, parse_config
from runner.errors import PreflightError
from runner.launcher import EngineHost
from runner.processes import PORTS, Process, free_port, kill_marked, marked
from tests.make_config import toml

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code])
print(child.pid, flush=True)
time.sleep(60)
"""
GENTLE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(0)))
print("up", flush=True)
time.sleep(60)
"""
LEAVING = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
"""
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
time.sleep(60)
"""


def environment(marker: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "CAMPAIGN_RUN": marker}


def start(code: str, tmp_path: Path, marker: str = "", **options: object) -> Process:
    return Process("engine", [sys.executable, "-c", code], environment(marker), tmp_path / "log", **options)  # type: ignore[arg-type]


def wait_for(condition: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def marker() -> str:
    return f"{uuid.uuid4().hex[:12]}:7b.eager.sustained.r1.p1a1"


def test_stop_is_gentle_first(tmp_path: Path) -> None:
    process = start(GENTLE, tmp_path)
    wait_for(lambda: process.last_line() == "up")
    process.stop(10.0)
    assert process.poll() == 0
    assert process.last_line() == "bye"


def test_stop_kills_a_group_that_ignores_sigterm(tmp_path: Path) -> None:
    process = start(STUBBORN, tmp_path)
    wait_for(lambda: b"up" in process.log_bytes())
    child = int(process.log_bytes().split()[0])
    begin = time.monotonic()
    process.stop(0.3)
    assert 0.3 <= time.monotonic() - begin < 5
    assert process.poll() == -signal.SIGKILL
    assert gone(child)


def test_stop_kills_even_when_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(STUBBORN, tmp_path)
    wait_for(lambda: b"up" in process.log_bytes())
    real, calls = Process._wait, []

    def interrupted(self: Process, seconds: float) -> None:
        calls.append(seconds)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(self, seconds)

    monkeypatch.setattr(Process, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.stop(30.0)
    assert not process.group_alive()


def test_a_process_that_left_its_group_is_found_by_its_marker(tmp_path: Path, marker: str) -> None:
    process = start(LEAVING, tmp_path, marker)
    wait_for(lambda: process.poll() is not None)
    orphan = int(process.last_line())
    process.stop(1.0)
    assert not gone(orphan)
    assert [p.pid for p in marked(marker)] == [orphan]
    assert kill_marked("another:run") == []
    assert kill_marked(marker.split(":")[0]) == [orphan]
    assert gone(orphan)


def test_killing_the_runner_ends_its_processes(tmp_path: Path, marker: str) -> None:
    """SIGKILL leaves no time to clean up: the guard ends the whole group."""
    runner = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from runner.processes import Process
        log = Path({str(tmp_path / "log")!r})
        p = Process("engine", [sys.executable, "-c", {PARENT!r}], {environment(marker)!r}, log)
        print(p.pid, flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", runner], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            wait_for(lambda: len(marked(marker)) == 2)
        finally:
            process.kill()
    wait_for(lambda: not marked(marker))


def test_the_guard_leaves_with_the_process(tmp_path: Path) -> None:
    process = start("pass", tmp_path)
    guard = process._guard
    assert guard is not None
    process.stop(1.0)
    assert guard.poll() == 0


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="/no/such/python"):
        Process("engine", ["/no/such/python"], {}, tmp_path / "log")


def test_cpus_are_inherited(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    process = start("import os; print(os.sched_getaffinity(0))", tmp_path, cpus=frozenset({cpu}))
    wait_for(lambda: process.poll() is not None)
    process.stop(1.0)
    assert process.last_line() == f"{{{cpu}}}"
    assert os.sched_getaffinity(0) == before


def test_ports_are_free_and_differ() -> None:
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 15
    assert all(PORTS[0] <= port <= PORTS[1] for port in ports)


def test_a_listener_with_reuseport_is_not_taken_for_free(monkeypatch: pytest.MonkeyPatch) -> None:
    import random
    import socket

    with socket.socket() as leftover:
        leftover.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        leftover.bind(("127.0.0.1", 0))
        leftover.listen()
        taken = leftover.getsockname()[1]
        answers = iter([taken, taken, 20111])
        monkeypatch.setattr(random.SystemRandom, "randint", lambda *_: next(answers))
        assert free_port() != taken


CONFIG = toml(
    ("seed = 1", "seed = 3"),
    ('kind = "stand-in"', 'environment = {VLLM_USE_V2_MODEL_RUNNER = "0"}'),
    ('"--no-enable-prefix-caching", "--generation-config vllm", "--cudagraph-metrics", ', ""),
    ('"qwen2.5-7b"', '"qwen"\ntokenizer = "tok"'),
    ("output_tokens = 16", "output_tokens = 16\nrange_ratio = 0.3"),
)


def config(text: str = CONFIG) -> Config:
    return parse_config(text, Path("campaign.toml"))


def host(tmp_path: Path, **changes: Any) -> EngineHost:
    values = {"python": sys.executable, "path": (), "models": tmp_path, "cache": tmp_path / "cache", "kind": "vllm"}
    return EngineHost(**(values | changes))  # type: ignore[arg-type]


def test_serve_command_line(tmp_path: Path) -> None:
    settings, here = config(), host(tmp_path)
    arm_flags = ("--enforce-eager", "--num-gpu-blocks-override", "9")
    argv = here.serve_argv(settings, settings.models["7b"], 20001, 0.52104, arm_flags)
    assert argv[:4] == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    assert argv[4] == str(tmp_path / "qwen")
    text = " ".join(argv[5:])
    assert text == (
        "--host 127.0.0.1 --port 20001 --max-model-len 4096 --seed 3 "
        f"--tokenizer {tmp_path / 'tok'} --load-format dummy "
        "--gpu-memory-utilization 0.5210 --dtype bfloat16 --enforce-eager --num-gpu-blocks-override 9"
    )
    plain = here.serve_argv(settings, settings.models["7b"], 1, None, ())
    assert not any("utilization" in word or "override" in word for word in plain)


def test_bench_command_line(tmp_path: Path) -> None:
    settings, here = config(), host(tmp_path)
    argv = here.bench_argv(
        settings, settings.models["7b"], settings.profiles["small"], port=20001, seed=5, result=tmp_path / "raw.json"
    )
    assert argv[1].endswith("bench_entry.py")
    pairs = dict(pairwise(argv))
    wanted = {
        "--backend": "openai",
        "--model": str(tmp_path / "qwen"),
        "--tokenizer": str(tmp_path / "tok"),
        "--seed": "5",
        "--random-input-len": "128",
        "--random-output-len": "16",
        "--random-range-ratio": "0.3",
        "--num-prompts": "40",
        "--max-concurrency": "8",
        "--request-rate": "inf",
        "--temperature": "0.0",
        "--num-warmups": "2",
        "--result-dir": str(tmp_path),
        "--result-filename": "raw.json",
        "--dataset-name": "random",
    }
    assert {name: pairs.get(name) for name in wanted} == wanted
    assert {"--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"} <= set(argv)


def test_environment_keeps_the_callers_variables_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "VLLM_LOGGING_LEVEL",
        "CAMPAIGN_RUN",
        "CAMPAIGN_STANDIN_SPEED",
    ):
        monkeypatch.setenv(name, "caller")
    monkeypatch.setenv("no_proxy", "inner.example")
    whole, own = host(tmp_path, path=("site",)).environment(
        config(), marker="store:run", steps_file=tmp_path / "steps.csv", gpu_index=3
    )
    assert "PYTHONHOME" not in whole
    assert "VIRTUAL_ENV" not in whole
    assert "VLLM_LOGGING_LEVEL" not in whole
    assert whole["PATH"] == os.environ["PATH"]
    assert whole["CAMPAIGN_RUN"] == "store:run"
    assert whole["CAMPAIGN_STANDIN_SPEED"] == "caller"
    assert whole["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert whole["CUDA_VISIBLE_DEVICES"] == "3"
    assert whole["SPT_NOENV"] == "1"
    assert whole["no_proxy"] == "inner.example,127.0.0.1"
    engine_side, site = whole["PYTHONPATH"].split(os.pathsep)
    assert (Path(engine_side) / "step_trace.py").is_file()
    assert Path(site).is_absolute()
    assert "PATH" not in own
    assert "no_proxy" not in own
    assert own.items() <= whole.items()


def fake_engine(tmp_path: Path, version: str) -> tuple[str, ...]:
    """A folder for --engine-path in which vLLM seems to be installed."""
    info = tmp_path / "site" / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return (str(tmp_path / "site"),)


def model_folder(tmp_path: Path) -> None:
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "config.json").write_text("{}")
    (tmp_path / "tok").mkdir()


def test_check_passes_where_all_is_there(tmp_path: Path) -> None:
    model_folder(tmp_path)
    host(tmp_path, path=fake_engine(tmp_path, "0.23.0+cpu")).check(config())


@pytest.mark.parametrize(
    ("changes", "version", "message"),
    [
        ({"python": "/no/such/python"}, "0.23.0", "/no/such/python"),
        ({}, None, "not installed"),
        ({}, "0.24.0", "found vLLM 0.24.0"),
        ({"cpus": frozenset({100_000})}, "0.23.0", "100000"),
        ({"cache": Path("/proc/cache")}, "0.23.0", "/proc/cache"),
        ({"models": Path("/no/such/models")}, "0.23.0", "has no config.json"),
    ],
)
def test_check_names_what_is_missing(
    tmp_path: Path, changes: dict[str, Any], version: str | None, message: str
) -> None:
    model_folder(tmp_path)
    path = fake_engine(tmp_path, version) if version else ()
    with pytest.raises(PreflightError, match=re.escape(message)) as caught:
        host(tmp_path, path=path, **changes).check(config())
    assert caught.value.hint


def test_check_wants_weights_for_a_hub_model_and_names_its_revision(tmp_path: Path) -> None:
    model_folder(tmp_path)
    here = host(tmp_path, path=fake_engine(tmp_path, "0.23.0"))
    hub = config(CONFIG.replace('"dummy"', '"hub"'))
    with pytest.raises(PreflightError, match="safetensors") as caught:
        here.check(hub)
    assert "a09a35458c702b33eeacc393d103063234e8bc28" in caught.value.hint
    here.check(hub, models=())
    (tmp_path / "qwen" / "model-1.safetensors").touch()
    here.check(hub)
