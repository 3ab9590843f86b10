"""One small campaign on the engine's CPU build, run through the command as a user would."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from analysis.formats.run_record import RunRecord
from runner.store import read_records

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CONFIG = HERE / "campaign-cpu.toml"
VICTIM = "tiny.eager.crowded.r1.p1a1"  # the run whose engine is killed


@dataclass(frozen=True)
class Campaign:
    """A finished `campaign run`; `killed`: the processes that were killed on purpose."""

    exit_code: int
    output: str
    results: Path
    records: tuple[RunRecord, ...]
    killed: tuple[int, ...]

    def run(self, folder: str) -> RunRecord:
        return next(r for r in self.records if r.folder == folder)


def run_campaign(engine_python: str, place: Path, name: str, suite: str, *, kill: bool = False) -> Campaign:
    results = place / name
    options = {
        "config": CONFIG, "suite": suite, "results": results, "engine-python": engine_python,
        "models": place / "models", "cache": place / "cache",
    }  # fmt: skip
    argv = [sys.executable, "-m", "runner", "run", "--no-gpu"]
    argv += [f"--{option}={value}" for option, value in options.items()]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    killed: list[int] = []
    assassin = threading.Thread(target=kill_engine_core, args=(results, process, killed), daemon=True)
    if kill:
        assassin.start()
    try:
        output, _ = process.communicate(timeout=900)
    finally:
        process.kill()
    records, unreadable = read_records(results)
    assert unreadable == []
    return Campaign(process.returncode, output, results, tuple(records), tuple(killed))


def kill_engine_core(results: Path, campaign: subprocess.Popen[str], killed: list[int]) -> None:
    """SIGKILL the victim's engine core once its step trace shows the load."""
    steps = results / "runs" / f"{VICTIM}.partial" / "steps.csv"
    while campaign.poll() is None:
        with contextlib.suppress(OSError):
            if steps.read_text().count("\n") > 60:
                break
        time.sleep(0.05)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("CAMPAIGN_RUN", "").endswith(VICTIM) and "EngineCore" in " ".join(
                process.cmdline()
            ):
                process.send_signal(signal.SIGKILL)
                killed.append(process.pid)
