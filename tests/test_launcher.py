"""Child processes: own group, stopped for good, found by marker, ended when the runner dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import psutil
import pytest

from runner.errors import PreflightError
from runner.launcher import kill_orphans, marker_for
from runner.processes import PORTS, Process, free_port, kill_marked, marked

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
    return marker_for(uuid.uuid4().hex[:12], "7b.eager.sustained.r1.p1a1")


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
    assert kill_orphans(marker.split(":")[0]) == [orphan]
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
