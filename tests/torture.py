"""Faults at seeded random moments of a campaign, and what must hold after them. `make torture` runs this file.

A *fault* is played in one attempt of a run or first start. Whatever was played, the campaign, started again as often as
it takes, must end with every run of the plan valid once, none lost, none double, the folder readable all the time.

`python -m tests.torture --seeds 200`: whole campaigns in one process each, on played engines (torture_in_process.py).
`python -m tests.torture --processes 20`: the `campaign` command with the stand-in engine (torture_processes.py).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import duckdb

from analysis.formats.run_record import RunRecord
from runner.config import Config
from runner.files import sha256
from runner.plan import build_plan
from runner.progress import block_state
from runner.store import read_header, read_records
from tests.make_config import toml

RUNS = 40
LOADED = 10  # every tenth campaign's folder is also loaded into a database (seconds)
MAX_SITTINGS = 300
PROFILE = "prompts = 16\nconcurrency = 8\ninput_tokens = 32\noutput_tokens = 4\n"


def write_config(folder: Path, runs: int) -> Path:
    """campaign.toml of a plan with so many runs: two arms and two profiles, so a multiple of four."""
    path = folder / "campaign.toml"
    edits = [
        ("repetitions = 1", f"repetitions = {runs // 4}"),
        ("memory_budget_gib = 72.8", "gpu_memory_utilization = 0.9"),
        ("probe =", "timeouts = {start_s = 20.0, silence_s = 2.0, bench_s = 20.0, stop_s = 5.0}\nprobe ="),
        ("{input_tokens = 64, output_tokens = 4}", "{input_tokens = 16, output_tokens = 2}"),
        (
            "prompts = 40\nconcurrency = 8\ninput_tokens = 128\noutput_tokens = 16\n",
            f"{PROFILE}[profile.same]\n{PROFILE}",
        ),
        ('["small"]', '["small", "same"]'),
    ]
    path.write_text(toml(*edits))
    return path


@dataclass
class Witness:
    """Looks at a results folder again and again; AssertionError when something that must hold does not.

    `never_valid`: folders with the fault that was played there and that no run can survive.
    """

    root: Path
    seen: dict[str, RunRecord] = field(default_factory=dict)
    never_valid: dict[str, str] = field(default_factory=dict)
    looks: int = 0

    def look(self) -> None:
        """At any instant: what has its final name is whole, and nothing that was there is gone or changed."""
        if not (self.root / "campaign.json").exists():
            assert not self.seen
            return
        read_header(self.root)
        records, unreadable = read_records(self.root)
        assert not unreadable, unreadable
        found = {record.folder: record for record in records}
        assert len(found) == len(records)
        for folder, record in self.seen.items():
            assert found.get(folder) == record, f"{folder} was lost or changed"
        self.seen = found
        self.looks += 1

    def verdict(self, config: Config, database: Path | None = None) -> None:
        """At the end: every run of the plan counts once, no half-written folder, no damaged run believed."""
        self.look()
        for folder, fault in self.never_valid.items():
            assert folder not in self.seen or self.seen[folder].status != "valid", (
                f"{folder} is believed after: {fault}"
            )
        assert not list(self.root.glob("*/*.partial"))
        assert not [*self.root.glob("runs/*/*.tmp"), *self.root.glob("primes/*/*.tmp")], "a temporary file in a result"
        valid = [record for record in self.seen.values() if record.kind == "run" and record.status == "valid"]
        assert len({(r.run_id, r.pass_number) for r in valid}) == len(valid), "a run is valid twice in one pass"
        for record in valid:
            for name, digest in record.files_sha256.items():
                assert sha256(self.root / "runs" / record.folder / name) == digest, f"{record.folder}/{name}"
        plan = build_plan(config, ["published"])
        assert all(block_state(block, valid, None).status == "done" for block in plan.blocks)
        if database is not None:
            self._load(len(plan.runs), database)

    def _load(self, runs: int, database: Path) -> None:
        from analysis.load import load  # not in each sitting: SciPy takes a second

        summary = load(self.root, database)
        with duckdb.connect(str(database), read_only=True) as connection:
            assert connection.execute("SELECT * FROM unreadable").fetchall() == []
            counted = connection.execute("SELECT run_id FROM runs WHERE kind = 'run' AND counted").fetchall()
        assert summary.counted == runs, summary
        assert len({run_id for (run_id,) in counted}) == runs, "a run counts twice"


@dataclass(frozen=True)
class Survived:
    """What one seed went through."""

    seed: int
    faults: Counter[str]
    sittings: int
    attempts: int
    looks: int


def report(results: list[Survived], runs: int, began: float) -> str:
    kinds: Counter[str] = sum((result.faults for result in results), Counter())
    lines = [f"  {count:6d}  {name}" for name, count in sorted(kinds.items())]
    lines.append(
        f"{len(results)} campaigns of {runs} runs: {kinds.total()} faults of {len(kinds)} kinds survived in "
        f"{sum(r.sittings for r in results)} sittings and {sum(r.attempts for r in results)} attempts; "
        f"0 runs lost, 0 double, folder read {sum(r.looks for r in results)} times ({time.monotonic() - began:.0f} s)"
    )
    if "standin leave_orphan" in kinds and "fill disk" not in kinds:
        lines.append("NOT PLAYED: a full disk; mounting a tmpfs is not permitted here")
    return "\n".join(lines)


PR_SET_PDEATHSIG, CLONE_NEWNS = 1, 0x20000


def die_with_parent() -> None:
    """SIGKILL when the process that started this one ends, however it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        os._exit(1)


def own_room(room: str) -> None:
    """A worker's folder for temporary files, in memory; where mounting is permitted, seen by this worker and those that
    it starts alone, and gone with them."""
    die_with_parent()
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0:
        for command in (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "tmpfs", room]):
            subprocess.run(command, check=False, capture_output=True)
    os.environ["TMPDIR"] = tempfile.tempdir = room


def main() -> None:
    from tests import torture_in_process, torture_processes

    if "PYTEST_CURRENT_TEST" in os.environ:
        die_with_parent()

    parser = argparse.ArgumentParser(description="Faults at random moments of whole campaigns.")
    parser.add_argument("--seeds", type=int, default=0, help="campaigns on played engines")
    parser.add_argument("--processes", type=int, default=0, help="campaigns of real processes on the stand-in engine")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    args = parser.parse_args()
    work: list[tuple[int, Callable[[int], Survived]]] = [
        (args.seeds, partial(torture_in_process.torture, runs=args.runs)),
        (args.processes, partial(torture_processes.torture, runs=args.runs)),
    ]
    shared = Path("/dev/shm")
    for count, torture in work:
        began, results = time.monotonic(), []
        with (
            tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as room,
            ProcessPoolExecutor(args.workers, get_context("spawn"), own_room, (room,)) as pool,
        ):
            for result in pool.map(torture, range(args.first, args.first + count)):
                results.append(result)
                if sys.stderr.isatty() or len(results) % 10 == 0:
                    sys.stderr.write(f"\r{len(results)} of {count}")
                    sys.stderr.flush()
        if results:
            print(report(results, args.runs, began), flush=True)


if __name__ == "__main__":
    main()
