"""Ctrl-C and SIGTERM at moments when no run is under way: in imports, twice, three times, in DuckDB."""

from __future__ import annotations

import os
import pty
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest
from click.testing import CliRunner

from runner.campaign import StopFlag
from runner.cli import main
from runner.display import LiveDisplay, Tally
from tests.test_campaign_loop import TOML
from tests.test_kill import check_complete

ROOT = Path(__file__).parent.parent
SLOW_IMPORT = "import time\nprint('importing', flush=True)\ntime.sleep(20)\n"
LOST_IN_IMPORT = """
import time
class Lost:
    def __del__(self):  # an exception in it is swallowed, as in a callback of an import lock
        print('importing', flush=True)
        time.sleep(20)
lost = Lost()
del lost
"""


@pytest.mark.parametrize("module", [SLOW_IMPORT, LOST_IN_IMPORT])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_imports_ends_the_command_at_once(tmp_path: Path, module: str, signum: int, code: int) -> None:
    (tmp_path / "click.py").write_text(module)
    argv = [sys.executable, "-m", "runner", "run", "--results", str(tmp_path / "results")]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"importing\n"
    process.send_signal(signum)
    _, said = process.communicate(timeout=10)
    assert (process.returncode, said) == (code, b"")


def test_the_scripts_of_every_place_start_the_same_entry(tmp_path: Path) -> None:
    for place in ("pyproject.toml", "tools/gpu-host/unpack.sh", "container/install.sh"):
        text = (ROOT / place).read_text()
        assert "runner.__main__" in text, place
        assert "runner.cli" not in text, place
    script = (ROOT / "tools/gpu-host/unpack.sh").read_text().split("venv/bin/python\n")[-1].partition("\nSCRIPT")[0]
    (tmp_path / "campaign").write_text(script)
    runpy.run_path(str(tmp_path / "campaign"), run_name="__mp_main__")  # as the processes of a load do


def on_a_terminal(tmp_path: Path, moments_s: list[float], ready: Callable[[], bool] = lambda: True) -> tuple[int, str]:
    """Exit status and output of a `campaign run` that gets Ctrl-C so long after it is `ready`."""
    (tmp_path / "campaign.toml").write_text(TOML)
    argv = [sys.executable, "-m", "runner", "run", "--results", "results", "--cache", "cache"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CAMPAIGN_STANDIN_SPEED": "200", "TERM": "xterm"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(argv[0], argv, environment)
    said: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(terminal, 4096):
                said.append(data)
        except OSError:
            pass

    reader = threading.Thread(target=read)
    reader.start()
    while not ready():
        time.sleep(0.02)
    begun = time.monotonic()
    for moment in moments_s:
        time.sleep(max(0.0, begun + moment - time.monotonic()))
        os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    reader.join()
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), b"".join(said).decode()


def test_three_quick_ctrl_c_stop_with_130_and_leave_the_results_resumable(tmp_path: Path) -> None:
    done = tmp_path / "results/runs"
    code, said = on_a_terminal(tmp_path, [0.0, 0.05, 0.1], lambda: any(done.glob("*a1")))
    assert code == 130, said
    assert "Traceback" not in said
    argv = [sys.executable, "-m", "runner", "run", "--results", str(tmp_path / "results"), "--cache", "cache"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CAMPAIGN_STANDIN_SPEED": "200"}
    assert subprocess.run(argv, env=environment, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    check_complete(tmp_path / "campaign.toml", tmp_path / "results")


@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_the_start_ends_with_130(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        code, said = on_a_terminal(folder, [0.2 + number * 0.055])
        assert (code, "Traceback" in said) == (130, False), said


def test_a_third_signal_leaves_the_clean_up_after_the_second_alone() -> None:
    stop = StopFlag()
    with stop.installed():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        stop._calm_until = 0.0  # the clean-up takes too long
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_handler_of_a_stop_takes_no_lock() -> None:
    """The main thread, which it interrupts, may hold it: the two would wait for each other for ever."""
    stop, called = StopFlag(), []
    sys.setprofile(lambda _, event, function: called.append(function.__name__) if event == "c_call" else None)
    try:
        stop._handle(signal.SIGINT, None)
    finally:
        sys.setprofile(None)
    assert stop.event.is_set()
    assert {"acquire", "__enter__"}.isdisjoint(called)


@pytest.fixture
def _handlers() -> Any:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
def test_an_interrupt_that_duckdb_turned_into_another_error_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(*_: Any) -> str:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with duckdb.connect(config={"threads": 1}) as con:
            con.execute("SELECT count(*) FROM range(100000000) a, range(1000) b WHERE a.range * b.range % 7 = 3")
        return "not interrupted"

    monkeypatch.setattr("runner.cli.render_plan", query)
    done = CliRunner().invoke(main, ["plan", "--config", str(ROOT / "campaign.toml")])
    assert (done.exit_code, done.stderr) == (130, "stopped at once, before it was done; run it again\n")


def test_other_errors_are_not_taken_for_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> str:
        raise RuntimeError("something else")

    monkeypatch.setattr("runner.cli.render_plan", wrong)
    done = CliRunner().invoke(main, ["plan", "--config", str(ROOT / "campaign.toml")])
    assert isinstance(done.exception, RuntimeError)


def test_the_live_display_imports_nothing_while_it_draws_and_shows_texts_as_they_are() -> None:
    stream = StringIO()
    display = LiveDisplay(stream)
    assert not display._live.is_started, "nothing is drawn before the campaign takes the signals"
    sys.modules.pop("rich._emoji_codes", None)
    display.begin("folder", Tally())
    display.phase("[red]:warning:")
    display._live.console.print(display._render())
    display.close()
    assert "rich._emoji_codes" not in sys.modules
    assert "[red]:warning:" in stream.getvalue()


def test_the_processes_of_a_load_end_with_it_however_it_ends(tmp_path: Path) -> None:
    (results,) = (path.parent for path in (ROOT / "results").glob("*/campaign.json"))
    command = [sys.executable, "-m", "runner", "load", str(results), "--database", str(tmp_path / "d.duckdb")]
    load = psutil.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    others = set[psutil.Process]()
    until = time.monotonic() + 60
    while len(others) < 3 and load.poll() is None and time.monotonic() < until:  # two workers and more
        others |= set(load.children(recursive=True))
        time.sleep(0.02)
    assert len(others) >= 3 or os.cpu_count() == 1
    load.kill()
    load.wait(30)
    _, left = psutil.wait_procs(others, timeout=30)
    assert left == []
