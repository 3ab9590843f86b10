"""The `campaign` command with the stand-in engine, real processes, a real full disk, and SIGKILL.

Each sitting is this module run as a program: the command itself, except that attempts play the faults of a list. Each
attempt and its fault are noted in a journal outside the results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from analysis.formats.run_record import RunRecord
from runner.config import load_config
from runner.context import RunContext
from runner.processes import marked
from runner.standin.settings import FAULTS
from runner.store import read_header
from tests.torture import MAX_SITTINGS, Survived, Witness, die_with_parent, write_config

SPEED = "1000"
DISK_MIB = 160  # the command asks for 0.1 GiB and the plan's files
SITTING_S = 300
PHASES = ("starting", "probing", "waiting for the client", "measuring", "stopping", "writing")
KILLING = ("kill engine", "kill client", "kill runner", "stop runner", "fill disk")
# after these a run cannot be valid (a first start has no load to show the last three)
FATAL = {"crash_at_load", "die_mid_bench", "refuse_requests", "short_outputs"}


def choose(seed: int, disk: bool) -> list[str]:
    """Every fault that the stand-in can play, and those from outside, in the seed's order."""
    faults = [f"standin {name}" for name in FAULTS] + [k for k in KILLING if disk or k != "fill disk"]
    return random.Random(seed).sample(faults, len(faults))


# -- inside a sitting


class Play:
    """Plays a list of faults, one an attempt, some attempts in between without."""

    def __init__(self, seed: float, calm: float, faults: list[str], journal: Path) -> None:
        self.rng, self.calm, self.faults, self.journal = random.Random(seed), calm, faults, journal

    def note(self, folder: str, fault: str, never_valid: bool) -> None:
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps([folder, fault, never_valid]) + "\n")

    def __call__(self, ctx: RunContext) -> RunRecord:
        from runner.run import execute_run

        os.environ.pop("CAMPAIGN_STANDIN_FAULT", None)
        prime = ctx.identity.kind == "prime"
        if not self.faults or self.rng.random() < (0.8 if prime else self.calm):
            self.note(ctx.identity.folder, "", False)
            return execute_run(ctx)
        kind, _, what = (fault := self.faults.pop(0)).partition(" ")
        if kind == "standin":
            hangs = what == "hang_in_capture" and ctx.identity.arm == "graphs"
            fatal = hangs or what == "crash_at_load" or (what in FATAL and not prime)
            self.note(ctx.identity.folder, fault, fatal)
            os.environ["CAMPAIGN_STANDIN_FAULT"] = what
            return execute_run(ctx)
        at = self.rng.choice(PHASES[1:2] + PHASES[4:] if prime else PHASES)
        if what == "client" and not prime:  # while there is one
            at = self.rng.choice(PHASES[2:4])
        delay_s = self.rng.choice((0.0, self.rng.uniform(0, 0.2)))
        fatal = (
            delay_s == 0
            and at in PHASES[1:4]
            and what in ("engine", "disk", "client")
            and not (prime and what == "client")
        )
        self.note(ctx.identity.folder, fault, fatal)
        action = getattr(self, f"{kind}_{what}")

        def on_phase(phase: str) -> None:
            ctx.on_phase(phase)
            if phase == at:
                if delay_s:
                    threading.Timer(delay_s, action, [ctx]).start()
                else:
                    action(ctx)

        return execute_run(dataclasses.replace(ctx, on_phase=on_phase))

    @staticmethod
    def _kill(ctx: RunContext, client: bool) -> None:
        for process in marked(ctx.marker):
            with contextlib.suppress(psutil.Error):
                if ("bench" in process.cmdline()) == client:
                    process.kill()

    def kill_engine(self, ctx: RunContext) -> None:
        self._kill(ctx, False)

    def kill_client(self, ctx: RunContext) -> None:
        self._kill(ctx, True)

    def kill_runner(self, _: RunContext) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def stop_runner(self, _: RunContext) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def fill_disk(self, ctx: RunContext) -> None:
        """Until nothing fits any more; the next sitting finds room again."""
        with (
            contextlib.suppress(OSError),
            (ctx.directory.parent.parent.parent / "filler").open("wb", buffering=0) as file,
        ):
            for size in (2**20, 2**12):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))


def sitting() -> None:
    from runner import campaign, cli

    die_with_parent()
    seed, calm, faults, journal = json.loads(sys.argv[1])
    defaults: Any = campaign.Campaign.__init__.__kwdefaults__
    defaults["execute"] = Play(seed, calm, faults, Path(journal))
    cli.main(sys.argv[2:])


# -- a campaign


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A tmpfs on `folder`; False (and an ordinary folder) where mounting is not permitted."""
    folder.mkdir()
    options = f"size={DISK_MIB}m"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def watching(witness: Witness) -> Iterator[None]:
    """Look at the folder all the time; a failed look is raised at the end."""
    over, problems = threading.Event(), []

    def watch() -> None:
        while not over.wait(0.1):
            try:
                witness.look()
            except Exception as error:
                problems.append(error)
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if problems:
        raise problems[0]


def torture(seed: int, runs: int) -> Survived:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory())).resolve()
        disk = stack.enter_context(small_disk(place / "disk"))
        config, journal, results = write_config(place, runs), place / "journal", place / "disk" / "results"
        options = ["run", "--config", str(config), "--results", str(results), "--cache", str(place / "cache")]
        witness, rng = Witness(results), random.Random(seed)
        faults, sittings, code, output = choose(seed, disk), 0, None, ""
        journal.touch()
        with watching(witness):
            while code != 0:
                sittings += 1
                assert sittings < MAX_SITTINGS, f"seed {seed}: no end, exit status {code}: {output}"
                (place / "disk" / "filler").unlink(missing_ok=True)
                played = sum(bool(fault) for _, fault, _ in read(journal))
                calm = 0.5 if runs >= 40 else 0.05  # so that the faults last about as long as the runs
                plan = json.dumps([rng.random(), calm, faults[played:], str(journal)])
                argv = [sys.executable, "-m", "tests.torture_processes", plan, *options]
                done = subprocess.run(
                    argv, env=os.environ | {"CAMPAIGN_STANDIN_SPEED": SPEED}, timeout=SITTING_S, check=False,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                )  # fmt: skip
                code, output = done.returncode, done.stdout[-3000:]
                assert code in (0, 2, 3, -signal.SIGKILL, 143), f"seed {seed}: exit status {code}: {output}"
                if code != -signal.SIGKILL:
                    assert_no_process(results)
        notes = read(journal)
        for folder, fault, fatal in notes:  # of a folder that was made again, the last counts
            witness.never_valid.pop(folder, None)
            if fatal:
                witness.never_valid[folder] = fault
        assert_no_process(results)
        witness.verdict(load_config(config), place / "results.duckdb")
        return Survived(seed, Counter(fault for _, fault, _ in notes if fault), sittings, len(notes), witness.looks)


def read(journal: Path) -> list[tuple[str, str, bool]]:
    """(folder, fault or empty, whether the attempt cannot be valid) of every attempt so far."""
    return [tuple(json.loads(line)) for line in journal.read_text(encoding="utf-8").splitlines()]  # type: ignore[misc]


def assert_no_process(results: Path) -> None:
    if (results / "campaign.json").exists():
        left = marked(read_header(results)["store_id"])
        assert not left, left


if __name__ == "__main__":
    sitting()
