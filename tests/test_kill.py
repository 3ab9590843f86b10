"""SIGKILL at any moment: started again, the campaign ends with the same valid runs, none twice, and no orphan."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from runner.config import load_config
from runner.plan import build_plan
from runner.processes import MARKER_VARIABLE
from runner.store import read_header, read_records
from tests.test_campaign_loop import TOML

KILLS = int(os.environ.get("KILLS", "25"))


def start(config: Path, results: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"CAMPAIGN_STANDIN_SPEED": "200"}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "runner",
            "run",
            "--config",
            str(config),
            "--results",
            str(results),
            "--cache",
            str(results.parent / "cache"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def marked(results: Path) -> list[psutil.Process]:
    store_id = read_header(results)["store_id"]
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARKER_VARIABLE, "").startswith(
                store_id
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_killed_at_random_moments_the_campaign_still_completes(tmp_path: Path) -> None:
    config = tmp_path / "campaign.toml"
    config.write_text(TOML)
    results = tmp_path / "results"
    moment = random.Random(20260625)
    killed = 0
    seconds_a_start = 2.0
    while killed < KILLS:
        process = start(config, results)
        time.sleep(moment.uniform(0.05, seconds_a_start * 1.5))
        finished = process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += not finished
        _, unreadable = read_records(results) if results.exists() else ([], [])
        assert not unreadable, "a folder with its final name must be whole"
        if finished:  # complete: begin another campaign, until the kills are used up
            assert process.returncode == 0, process.stdout.read().decode() if process.stdout else ""
            check_complete(config, results)
            results = tmp_path / f"results{killed}"
    last = start(config, results)
    output, _ = last.communicate(timeout=300)
    assert last.returncode == 0, output.decode()
    check_complete(config, results)


def check_complete(config: Path, results: Path) -> None:
    plan = build_plan(load_config(config), ["published"])
    records, unreadable = read_records(results)
    valid = [r.run_id for r in records if r.kind == "run" and r.status == "valid"]
    assert sorted(valid) == sorted(run.run_id for run in plan.runs), "each run of the plan once, none lost"
    assert not unreadable
    assert not list(results.glob("*/*.partial"))
    assert marked(results) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_stop_the_engine_and_leave_the_store_resumable(tmp_path: Path, signum: int, code: int) -> None:
    config = tmp_path / "campaign.toml"
    config.write_text(TOML)
    results = tmp_path / "results"
    process = start(config, results)
    deadline = time.monotonic() + 30
    while not list((results / "runs").glob("*sustained*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signum)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == code, output.decode()
    assert b"start again to go on" in output
    assert marked(results) == []
    again = start(config, results)
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output.decode()
    check_complete(config, results)
