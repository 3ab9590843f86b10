"""Faults at random moments: the campaign, started again, always ends complete. tests/torture.py says what is meant."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil
import pytest

from analysis.formats.failure import FAILURES
from runner.standin.settings import FAULTS

SEEDS = int(os.environ.get("TORTURE_SEEDS", "20"))


def torture(*options: str) -> dict[str, int]:
    """Faults that were survived, by kind."""
    argv = [sys.executable, "-m", "tests.torture", *options]
    done = subprocess.run(argv, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "0 runs lost, 0 double" in done.stdout
    print(done.stdout)
    if "NOT PLAYED" in done.stdout:
        warnings.warn(done.stdout.strip().splitlines()[-1], stacklevel=2)
    return {name: int(count) for count, name in re.findall(r"^ +(\d+)  (.+)$", done.stdout, re.MULTILINE)}


@pytest.mark.torture
def test_real_processes_survive_every_fault() -> None:
    """Twenty campaigns of 8 runs and 12 faults each; `make torture` plays campaigns of 40."""
    survived = torture("--processes", str(SEEDS), "--runs", "8")
    assert {f"standin {fault}" for fault in FAULTS} <= survived.keys()
    assert {"kill engine", "kill client", "kill runner", "stop runner"} <= survived.keys()
    assert sum(survived.values()) > 8 * SEEDS


@pytest.mark.torture
def test_nothing_is_left_of_a_torture_that_was_killed() -> None:
    argv = [sys.executable, "-m", "tests.torture", "--processes", "2", "--runs", "8"]
    with subprocess.Popen(argv, cwd=Path(__file__).parent.parent) as main:
        started: dict[int, psutil.Process] = {}
        deadline = time.monotonic() + 60
        while not any("runner.standin" in _argv(p) for p in started.values()) and time.monotonic() < deadline:
            time.sleep(0.1)
            started |= {p.pid: p for p in psutil.Process(main.pid).children(recursive=True)}
        assert any("runner.standin" in _argv(p) for p in started.values())
        started |= {p.pid: p for p in psutil.Process(main.pid).children(recursive=True)}
        main.kill()
    _, alive = psutil.wait_procs(started.values(), timeout=30)
    assert not alive
    assert "/disk tmpfs" not in Path("/proc/mounts").read_text()


def _argv(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


@pytest.mark.torture
def test_one_campaign_of_40_runs_survives_every_class_of_failure_and_a_disk_that_fails_anywhere() -> None:
    survived = torture("--seeds", "1")
    assert {f"failure {name}" for name in FAILURES} <= survived.keys()
    assert survived["killed"] >= 10
    assert survived["disk full"] >= 5
