"""Several workers: one a GPU, each with whole blocks and CPUs of its own, all in one results folder.

The parent holds the folder, does what is shared (leftovers of a crash, first starts) and starts `campaign run` once a
GPU. A worker inherits the folder's lock, so that no other campaign gets in before the last of them has ended, and stops
when its parent is gone.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO

from runner.campaign import EXIT_OK, EXIT_OUT_OF_TIME, EXIT_SOME_FAILED, Summary, handling_stops
from runner.config import Config
from runner.errors import PreflightError
from runner.nvml import Gpu, open_gpu
from runner.plan import Plan, worker_of
from runner.progress import block_state
from runner.store import Store, read_records
from runner.units import cpu_list, duration

TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
SEVERITY = (EXIT_OK, EXIT_OUT_OF_TIME, EXIT_SOME_FAILED)  # any other status is worse
RELAY_WAIT_S = 5.0
ALONE = "--workers 1 uses one GPU alone"


@dataclass(frozen=True)
class GpuOptions:
    """--gpu, --workers and --no-gpu as given."""

    gpu: str | None = None
    workers: int | None = None
    no_gpu: bool = False

    def open(self, config: Config) -> list[Gpu]:
        """The GPU named, or all that CUDA_VISIBLE_DEVICES names or the machine has, the first `workers` of them; none
        for an engine that uses none.

        Raises PreflightError when one cannot be used, they are not of one kind, or are fewer than `workers`.
        """
        if self.no_gpu or config.engine.kind == "stand-in":
            if self.gpu is not None:
                raise PreflightError(f"--gpu {self.gpu}: this engine uses no GPU", "leave --gpu out")
            return []
        gpus = [open_gpu(self.gpu)]
        if self.gpu is None and self.workers != 1:
            named = os.environ.get("CUDA_VISIBLE_DEVICES")
            selectors = named.split(",") if named else map(str, range(gpus[0].facts()["gpus_in_machine"]))
            gpus = [open_gpu(selector.strip()) for selector in selectors][: self.workers]
        if len(kinds := {found.identity().name for found in gpus}) > 1:
            hint = f"choose with CUDA_VISIBLE_DEVICES; {ALONE}"
            raise PreflightError(f"the GPUs are not of one kind: {', '.join(sorted(kinds))}", hint)
        if len(gpus) < (self.workers or 1):
            raise PreflightError(f"--workers {self.workers}: {len(gpus)} GPU to use", "give no more workers than GPUs")
        return gpus


def split_cpus(cpus: frozenset[int] | None, workers: int) -> list[frozenset[int]]:
    """Equal parts of `cpus` (None: all that this process may use), the threads of a core in one part where there are
    enough cores. Raises PreflightError."""
    alone = [[cpu] for cpu in sorted(cpus or os.sched_getaffinity(0))]
    cores: dict[str, list[int]] = {}
    for (cpu,) in alone:
        siblings = Path(TOPOLOGY.format(cpu))
        cores.setdefault(siblings.read_text(encoding="ascii") if siblings.exists() else str(cpu), []).append(cpu)
    units = list(cores.values()) if len(cores) >= workers else alone
    if len(units) < workers:
        raise PreflightError(f"{workers} workers for {len(units)} CPUs", f"give them more CPUs; {ALONE}")
    cuts = [len(units) * number // workers for number in range(workers + 1)]
    return [frozenset(cpu for unit in units[a:b] for cpu in unit) for a, b in pairwise(cuts)]


def enter(plan: Plan, number: int, workers: int, cpus: frozenset[int] | None) -> Plan:
    """In a worker: keep to its CPUs, and stop in order when the parent's end of standard input closes. Returns its part
    of the plan."""
    if cpus:
        os.sched_setaffinity(0, cpus)

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin: the interpreter could not end while a thread waits for its lock
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()
    of = worker_of(plan, workers)
    return replace(plan, blocks=tuple(block for block in plan.blocks if of[block.block_id] == number))


def command_lines(
    gpus: Sequence[Gpu], cpus: Sequence[frozenset[int]], lock: int, left_s: float | None
) -> dict[str, list[str]]:
    """By name, the command line of each worker: this program's, and what is the worker's own after it."""
    lines = {}
    for number, own in enumerate(cpus):
        words = [sys.executable, "-m", "runner", *sys.argv[1:], "--workers", "1"]
        words += ["--worker", f"{number + 1}/{len(cpus)}", "--lock", str(lock)]
        words += ["--cpus", cpu_list(own)]
        words += ["--gpu", gpus[number].identity().uuid] if gpus else []
        words += ["--time-budget", f"{max(0.0, left_s):.0f}s"] if left_s is not None else []
        lines[f"gpu {gpus[number].identity().index}" if gpus else f"worker {number + 1}"] = words
    return lines


def who_does_what(plan: Plan, names: Sequence[str]) -> str:
    """For the reader, before they start."""
    of = worker_of(plan, len(names))
    lines = [f"{len(names)} workers side by side: that can slow what waits for the CPU, eager arms above all; {ALONE}"]
    for number, name in enumerate(names, 1):
        own = [block for block in plan.blocks if of[block.block_id] == number]
        lines.append(f"{name}: {len(own)} blocks, about {duration(sum(block.estimate_s for block in own))} in all")
    return "\n".join(lines)


def run_workers(plan: Plan, store: Store, lines: dict[str, list[str]]) -> Summary:
    """Start a worker a command line, and wait for all; signals are handed on. The worst exit status counts."""
    before = sum(record.status != "valid" for record in read_records(store.root)[0])
    workers: dict[str, subprocess.Popen[str]] = {}
    relays = []
    caught: list[int] = []

    def hand_on(signum: int, _: object) -> None:
        caught.append(signum)
        for worker in workers.values():
            worker.send_signal(signum)

    with handling_stops(hand_on):
        for name, line in lines.items():
            worker = workers[name] = subprocess.Popen(
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                pass_fds=[store.lock],
                start_new_session=True,  # Ctrl-C on a terminal reaches the parent alone, which hands it on
            )
            if caught:
                worker.send_signal(caught[0])
            relays.append(threading.Thread(target=_relay, args=(worker.stdout, name), daemon=True))
            relays[-1].start()
        statuses = {name: worker.wait() for name, worker in workers.items()}
        for relay in relays:
            relay.join(RELAY_WAIT_S)
    records, _ = read_records(store.root)
    left = sum(len(block_state(block, records, None).missing_arms) for block in plan.blocks)
    failed = sum(record.status != "valid" for record in records) - before
    if caught:
        code, message = 128 + caught[0], f"stopped by {signal.Signals(caught[0]).name}; start again to go on"
    else:
        code = max(statuses.values(), key=lambda status: SEVERITY.index(status) if status in SEVERITY else 9)
        bad = [f"{name} ended with status {status}" for name, status in statuses.items() if status]
        message = f"{', '.join(bad)}; see its last lines" if bad else "every block of the plan is complete"
    return Summary(code if code >= 0 else 1, len(plan.runs) - left, failed, left, message)


def _relay(output: IO[str], name: str) -> None:
    for line in output:
        with suppress(OSError):  # nobody reads any more; the worker must not wait for that
            print(f"{name} | {line}", end="", file=sys.stderr, flush=True)
