"""The engine's step trace plug-in and the held-back bench client, against a minimal vllm package."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.formats.steps import parse_steps

ENGINE_SIDE = Path(__file__).parent.parent / "runner" / "engine_side"
HEADER = (
    "t_ns,running,waiting,kv_usage,preempted,prompt_tokens,generated_tokens,unpadded_tokens,padded_tokens,runtime_mode"
)
FAKE_VLLM = {
    "__init__.py": '__version__ = "0.23.0+cpu"\n',
    "v1/__init__.py": "",
    "v1/metrics/__init__.py": "",
    "v1/metrics/loggers.py": "class StatLoggerBase: pass\n",
    "benchmarks/__init__.py": "",
    "benchmarks/serve.py": """
import asyncio, time
class RequestFuncOutput:
    def __init__(self, success=False): self.success = success
async def wait_for_endpoint(func, test_input, session, timeout_seconds=600, retry_interval=5):
    print("asked the server")
    return RequestFuncOutput()
async def benchmark(ready):
    if ready > 0:
        output = await wait_for_endpoint(None, None, None, timeout_seconds=ready)
        assert output.success
    print(f"measured {time.monotonic_ns()}")
def main(ready): asyncio.run(benchmark(ready))
""",
    "entrypoints/__init__.py": "",
    "entrypoints/cli/__init__.py": "",
    "entrypoints/cli/main.py": """
import sys
def main():
    from vllm.benchmarks import serve
    assert sys.argv[:3] == ["vllm", "bench", "serve"], sys.argv
    serve.main(int(sys.argv[sys.argv.index("--ready-check-timeout-sec") + 1]))
""",
}


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    """A folder to put on PYTHONPATH, with a package `vllm` of the parts that are used."""
    root = tmp_path / "site"
    for name, text in FAKE_VLLM.items():
        path = root / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def plugin(vllm: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for folder in (vllm, ENGINE_SIDE):
        monkeypatch.syspath_prepend(str(folder))
    for name in [n for n in sys.modules if n == "vllm" or n.startswith("vllm.") or n == "step_trace"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("CAMPAIGN_STEPS_FILE", raising=False)
    import step_trace

    yield step_trace
    for name in [n for n in sys.modules if n.startswith("vllm") or n == "step_trace"]:
        sys.modules.pop(name, None)


def scheduler(running: int = 3, waiting: int = 2, *, skipped: int = 0, usage: float = 0.5, graph: bool = True) -> Any:
    stat = SimpleNamespace(num_unpadded_tokens=3, num_padded_tokens=4, runtime_mode="FULL") if graph else None
    return SimpleNamespace(
        num_running_reqs=running, num_waiting_reqs=waiting, num_skipped_waiting_reqs=skipped,
        kv_cache_usage=usage, cudagraph_stats=stat,
    )  # fmt: skip


def iteration(generated: int = 3, prompt: int = 0, preempted: int = 0) -> Any:
    return SimpleNamespace(
        num_preempted_reqs=preempted, num_generation_tokens=generated, prompt_token_stats=SimpleNamespace(total=prompt)
    )


def logger_writing(plugin: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CAMPAIGN_STEPS_FILE", str(path))
    return plugin.StepTraceLogger(None, 0)


def test_the_folder_registers_the_plugin() -> None:
    (dist,) = importlib.metadata.distributions(path=[str(ENGINE_SIDE)])
    (entry,) = dist.entry_points
    assert (entry.group, entry.value) == ("vllm.stat_logger_plugins", "step_trace:StepTraceLogger")
    assert dist.metadata["Name"] == "eager-cost-step-trace"


def test_an_installed_package_carries_the_registration() -> None:
    """Without these files the engine would run untraced and say nothing."""
    project = tomllib.loads((ENGINE_SIDE.parent.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    files = [path.relative_to(ENGINE_SIDE) for path in ENGINE_SIDE.glob("*.dist-info/*")]
    assert {path.name for path in files} == {"METADATA", "entry_points.txt"}
    assert [path for path in files if not any(path.match(pattern) and "/" in pattern for pattern in patterns)] == []


def test_rows_and_end_line(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logger_writing(plugin, tmp_path / "steps.csv", monkeypatch)
    before = time.monotonic_ns()
    logger.record(scheduler(skipped=1), iteration(prompt=64, preempted=2), mm_cache_stats=None, engine_idx=0)
    logger.record(scheduler(running=0, waiting=0, usage=0.0, graph=False), None)
    logger.record(None, iteration())
    logger.writer.close()
    logger.record(scheduler(), iteration())  # after the end: ignored
    logger.writer.close()
    header, *rows, end = (tmp_path / "steps.csv").read_text().splitlines()
    assert header == HEADER
    assert [row.split(",", 1)[1] for row in rows] == [
        "3,3,0.500000,2,64,3,3,4,FULL",
        "0,0,0.000000,,,,,,",
        ",,,0,0,3,,,",
    ]
    assert before <= int(rows[0].split(",")[0]) <= time.monotonic_ns()
    assert end == "#end rows=3 dropped=0 errors=0"


def test_the_reader_takes_it_as_complete(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logger_writing(plugin, tmp_path / "steps.csv", monkeypatch)
    for _ in range(5):
        logger.record(scheduler(), iteration())
    text_before_end = (tmp_path / "steps.csv").read_text()
    logger.writer.close()
    trace = parse_steps((tmp_path / "steps.csv").read_text())
    assert (trace.complete, len(trace.rows), trace.dropped, trace.errors) == (True, 5, 0, 0)
    assert trace.rows[0].padded_tokens == 4
    assert not parse_steps(text_before_end).complete


def test_rows_reach_the_file_while_it_runs(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logger_writing(plugin, tmp_path / "steps.csv", monkeypatch)
    logger.record(scheduler(), iteration())
    deadline = time.monotonic() + 5
    while len((tmp_path / "steps.csv").read_text().splitlines()) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 2
    logger.writer.close()


@pytest.mark.parametrize(("path", "engine_index"), [(None, 0), ("steps.csv", 1), ("no/such/folder/steps.csv", 0)])
def test_it_does_nothing_when_not_asked_or_not_able(
    plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None, engine_index: int
) -> None:
    if path:
        monkeypatch.setenv("CAMPAIGN_STEPS_FILE", str(tmp_path / path))
    logger = plugin.StepTraceLogger(None, engine_index)
    logger.log_engine_initialized()
    logger.record(scheduler(), iteration())
    assert logger.writer is None
    assert [p for p in tmp_path.iterdir() if p.name != "site"] == []


def test_unknown_stats_are_counted_not_raised(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logger_writing(plugin, tmp_path / "steps.csv", monkeypatch)
    logger.record(SimpleNamespace(renamed=1), iteration())
    logger.record(scheduler(usage="half"), iteration())  # type: ignore[arg-type]
    logger.record(scheduler(), iteration())
    logger.writer.close()
    assert (tmp_path / "steps.csv").read_text().splitlines()[-1] == "#end rows=1 dropped=0 errors=2"


def test_memory_is_bounded_and_drops_are_counted(plugin: Any, tmp_path: Path) -> None:
    plugin.FLUSH_INTERVAL_S = 60
    writer = plugin.TraceWriter(str(tmp_path / "steps.csv"), max_pending=10)
    for n in range(25):
        writer.put((n, *[None] * 9))
    assert len(writer.pending) == 10
    writer.close()
    trace = parse_steps((tmp_path / "steps.csv").read_text())
    assert (len(trace.rows), trace.dropped) == (10, 15)


def test_a_full_disk_leaves_whole_lines_and_a_count(
    plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.FLUSH_INTERVAL_S = 60
    writer = plugin.TraceWriter(str(tmp_path / "steps.csv"))
    real, calls = os.pwrite, []

    def full(fd: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        if len(calls) == 1:
            return real(fd, data[:7], offset)  # a short write, then no space
        raise OSError(errno.ENOSPC, "No space left on device")

    writer.put((1, *[None] * 9))
    monkeypatch.setattr(plugin.os, "pwrite", full)
    writer._drain()
    monkeypatch.setattr(plugin.os, "pwrite", real)
    writer.put((2, *[None] * 9))
    writer.close()
    lines = (tmp_path / "steps.csv").read_text().splitlines()
    assert lines == [HEADER, "2,,,,,,,,,", "#end rows=1 dropped=1 errors=1"]


def test_a_forked_child_leaves_the_file_alone(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = plugin.TraceWriter(str(tmp_path / "steps.csv"))
    monkeypatch.setattr(plugin.os, "getpid", lambda: 1)
    writer.close()
    monkeypatch.undo()
    assert "#end" not in (tmp_path / "steps.csv").read_text()
    writer.close()
    assert "#end" in (tmp_path / "steps.csv").read_text()


SERVER = """
import asyncio, signal, sys
from types import SimpleNamespace as N
import step_trace
logger = step_trace.StepTraceLogger(None, 0)
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    for n in range(7):
        logger.record(None, N(num_preempted_reqs=0, num_generation_tokens=n, prompt_token_stats=N(total=0)))
    print("up", flush=True)
    await stop.wait()
asyncio.run(main())
"""


def test_sigterm_flushes_the_tail_at_once(vllm: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    environment = {
        **os.environ, "PYTHONPATH": f"{vllm}{os.pathsep}{ENGINE_SIDE}", "CAMPAIGN_STEPS_FILE": str(path)
    }  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", SERVER], env=environment, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=10) == 0
    trace = parse_steps(path.read_text())
    assert (trace.complete, [row.generated_tokens for row in trace.rows]) == (True, list(range(7)))


# -- the bench client


def bench(vllm: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(ENGINE_SIDE / "bench_entry.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(vllm)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def edit(vllm: Path, name: str, old: str, new: str) -> None:
    path = vllm / "vllm" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


HELD = ("serve", "--ready-check-timeout-sec", "3600")


def test_it_waits_for_the_go_then_measures(vllm: Path) -> None:
    client = bench(vllm, *HELD)
    assert client.stdin is not None
    assert client.stdout is not None
    word, ready, moment = client.stdout.readline().split()
    assert (word, ready) == (b"campaign:", b"ready")
    time.sleep(0.2)
    assert client.poll() is None
    go_ns = time.monotonic_ns()
    out, err = client.communicate(b"g", timeout=20)
    assert (client.returncode, err) == (0, b"")
    measured = out.split()
    assert measured[0] == b"measured"  # and nothing that asks the server
    assert int(moment) < go_ns < int(measured[1])


def test_end_of_file_ends_it_unmeasured(vllm: Path) -> None:
    out, err = (client := bench(vllm, *HELD)).communicate(timeout=20)
    assert client.returncode == 3
    assert b"measured" not in out
    assert b"stdin was closed" in err


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("__init__.py", "0.23.0+cpu", "0.24.0", "found vLLM 0.24.0"),
        ("benchmarks/serve.py", "async def wait_for_endpoint", "async def renamed", "no coroutine wait_for_endpoint"),
        (
            "benchmarks/serve.py",
            "await wait_for_endpoint",
            "await RequestFuncOutput",
            "does not call wait_for_endpoint",
        ),
        ("entrypoints/cli/main.py", "serve.main(", "(lambda _: None)(", "without waiting"),
    ],
)
def test_another_vllm_is_refused(vllm: Path, file: str, old: str, new: str, message: str) -> None:
    edit(vllm, file, old, new)
    out, err = (client := bench(vllm, *HELD)).communicate(b"g", timeout=20)
    assert client.returncode == 4
    assert message in err.decode()
    assert b"measured" not in out


def test_a_client_that_was_not_held_back_fails(vllm: Path) -> None:
    _, err = (client := bench(vllm, "serve", "--ready-check-timeout-sec", "0")).communicate(b"g", timeout=20)
    assert client.returncode == 4
    assert b"without waiting for the go" in err
