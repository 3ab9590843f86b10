#!/usr/bin/env python3
"""The runs of a plan without this project's orchestration, to see what that costs or saves.

    plain_loop.py --results DIR --way plain|sweep [--arms graphs,eager] [options as of `campaign run`]

plain: start `vllm serve`, ask /health every 2 s, then start `vllm bench serve`, then SIGTERM and wait; one run after
the other. sweep: one `vllm bench sweep serve` over the arms of each block. Same server and client flags, seeds and KV
block counts (of DIR's primes) as `campaign run`, no instruments. Run it in the sitting, and on the GPU, of the
campaign's own runs. Wall times go to DIR/loops/<time>-<way>.json (docs/result-files.md); nothing else is kept.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from runner import http
from runner.campaign import machine_id
from runner.cli import machine_options, plan_options
from runner.config import Config
from runner.errors import CampaignError, EngineFailed
from runner.launcher import EngineHost
from runner.memory import utilization_for
from runner.nvml import Gpu
from runner.plan import Block, Plan, RunSpec, resolve_flags
from runner.processes import Child, Process, free_port
from runner.progress import measured_primes
from runner.store import read_records, write_atomic
from runner.workers import GpuOptions

POLL_S = 2.0  # of /health, in the plain way
VLLM = ["-m", "vllm.entrypoints.cli.main"]


@dataclass(frozen=True)
class LoopRun:
    """One run. Moments are CLOCK_MONOTONIC ns; None where the way does not show them."""

    model: str
    arm: str
    profile: str
    repetition: int
    begin_ns: int
    ready_ns: int | None
    client_begin_ns: int | None
    client_end_ns: int
    end_ns: int
    bench_completed: int
    bench_failed: int
    bench_duration_s: float
    bench_output_tok_s: float


class Loop:
    """What every run needs: command lines, environment, a folder for files that are thrown away."""

    def __init__(self, config: Config, host: EngineHost, results: Path, gpu: Gpu | None) -> None:
        self.config, self.host, self.gpu, self.records = config, host, gpu, read_records(results)[0]
        index = self.gpu.identity().index if self.gpu else None
        self.environment = host.environment(config, marker="plain-loop", gpu_index=index, plug_in=False)[0]
        self.folder = Path(tempfile.mkdtemp(prefix="plain-loop-"))

    def flags(self, run: RunSpec) -> tuple[str, ...]:
        primes = measured_primes(self.records, run.model)
        counts = {arm: prime.num_gpu_blocks_natural or 0 for arm, prime in primes.items()}
        return resolve_flags(self.config, run.model, run.arm, counts)

    def serve(self, run: RunSpec, port: int, flags: tuple[str, ...]) -> list[str]:
        model, share = self.config.models[run.model], utilization_for(self.config, self.gpu)
        return self.host.serve_argv(self.config, model, port, share, flags, False)

    def bench(self, run: RunSpec, port: int, result: Path) -> list[str]:
        """As the campaign's client, but vLLM's own entry and nothing that holds it back."""
        model, profile = self.config.models[run.model], self.config.profiles[run.profile]
        argv = self.host.bench_argv(self.config, model, profile, port=port, seed=run.seed, result=result)
        place = argv.index("--ready-check-timeout-sec")
        del argv[place : place + 2]
        return argv if self.host.kind == "stand-in" else [argv[0], *VLLM, "bench", *argv[2:]]

    def process(self, name: str, argv: list[str]) -> Process:
        return Process(name, argv, self.environment, self.folder / f"{name}.log", cpus=self.host.cpus)

    def wait(self, child: Child, limit_s: float) -> None:
        """Until it ends well. Raises EngineFailed."""
        deadline = time.monotonic() + limit_s
        while (status := child.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if status != 0:
            raise EngineFailed(f"the {child.name} ended with {status}: {child.last_line()}", "client_failed")


def plain(loop: Loop, block: Block, arms: list[str]) -> list[LoopRun]:
    runs, timeouts = [], loop.config.engine.timeouts
    for run in [run for run in block.runs() if run.arm in arms]:
        port, result = free_port(), loop.folder / f"{run.run_id}.json"
        begin_ns = time.monotonic_ns()
        server = loop.process("engine", loop.serve(run, port, loop.flags(run)))
        try:
            deadline = time.monotonic() + timeouts.start_s
            while (ready_ns := http.healthy_ns(port)) is None:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise EngineFailed(f"{run.run_id}: not ready: {server.last_line()}", "engine_died")
                time.sleep(POLL_S)
            client_begin_ns = time.monotonic_ns()
            client = loop.process("client", loop.bench(run, port, result))
            try:
                loop.wait(client, timeouts.bench_s)
            finally:
                client.stop(0.0)
            client_end_ns = time.monotonic_ns()
        finally:
            server.stop(timeouts.stop_s)
        moments = (begin_ns, ready_ns, client_begin_ns, client_end_ns, time.monotonic_ns())
        runs.append(_run(run, moments, result))
    return runs


def sweep(loop: Loop, block: Block, arms: list[str]) -> list[LoopRun]:
    """A run lasts until its result is written, the next begins there: the sweep does not tell more."""
    port, name = free_port(), block.block_id
    chosen = [run for run in block.runs() if run.arm in arms]
    params = [{"_benchmark_name": run.arm} | _as_params(run.arm, loop.flags(run)) for run in chosen]
    (loop.folder / "serve.json").write_text(json.dumps(params))
    options = {
        "serve-cmd": shlex.join(loop.serve(chosen[0], port, ())),
        "bench-cmd": shlex.join(loop.bench(chosen[0], port, loop.folder / "x.json")),
        "after-bench-cmd": "true",  # it would reset caches that are off, and only of a command named vllm
        "serve-params": loop.folder / "serve.json",
        "server-ready-timeout": round(loop.config.engine.timeouts.start_s),
        "num-runs": 1,
        "output-dir": loop.folder,
        "experiment-name": name,
    }
    argv = [loop.bench(chosen[0], port, Path("x"))[0], *VLLM, "bench", "sweep", "serve", "--show-stdout"]
    begin_ns = time.monotonic_ns()
    child = loop.process("client", [*argv, *(f"--{key}={value}" for key, value in options.items())])
    ends: dict[str, int] = {}
    try:
        while child.poll() is None:
            for path in (loop.folder / name).glob("*/summary.json"):
                ends.setdefault(path.parent.name, time.monotonic_ns())
            time.sleep(0.02)
        loop.wait(child, 0.0)
    finally:
        child.stop(loop.config.engine.timeouts.stop_s)
    end_ns, runs = time.monotonic_ns(), []
    for number, run in enumerate(chosen):
        folder = next(path for path in (loop.folder / name).iterdir() if path.name.endswith(f"-{run.arm}"))
        ended_ns = ends.get(folder.name, end_ns)
        moments = (begin_ns, None, None, ended_ns, end_ns if number == len(chosen) - 1 else ended_ns)
        runs.append(_run(run, moments, folder / "run=0.json"))
        begin_ns = ended_ns
    return runs


def _as_params(arm: str, flags: tuple[str, ...]) -> dict[str, Any]:
    """The flags of an arm as the sweep takes them: names and values."""
    params: dict[str, Any] = {}
    for argument in [part for flag in flags for part in flag.split("=", 1)]:
        if argument.startswith("--"):
            params[argument[2:]] = True
        elif params and params[name := [*params][-1]] is True:
            params[name] = argument
        else:
            raise CampaignError(f"arm {arm}: {argument} cannot be told to a sweep", "leave it out with --arms")
    return params


def _run(run: RunSpec, moments: tuple[int, int | None, int | None, int, int], result: Path) -> LoopRun:
    said = json.loads(result.read_bytes())
    figures = (said["completed"], said["failed"], said["duration"], said["output_throughput"])
    return LoopRun(run.model, run.arm, run.profile, run.repetition, *moments, *figures)


@click.command(help=__doc__)
@plan_options
@machine_options
@click.option("--results", type=click.Path(path_type=Path), required=True, help="Folder of the campaign's own runs.")
@click.option("--way", type=click.Choice(["plain", "sweep"]), required=True)
@click.option("--arms", default="graphs,eager", show_default=True)
def main(config: Config, plan: Plan, host: EngineHost, gpus: GpuOptions, *, results: Path, way: str, arms: str) -> None:
    try:
        loop = Loop(config, host, results, next(iter(gpus.open(config)), None))
        host.check(config, {block.model for block in plan.blocks})
        begun = datetime.now(UTC)
        run_block = plain if way == "plain" else sweep
        runs = [run for block in plan.blocks for run in run_block(loop, block, arms.split(","))]
    except CampaignError as error:
        click.echo(f"error: {error.message}\nnext: {error.hint or 'see the logs in the temporary folder'}", err=True)
        sys.exit(2)
    found: dict[str, Any] = {
        "schema_version": 1,
        "way": way,
        "campaign": config.campaign.name,
        "engine_version": config.engine.version,
        "simulated": host.kind == "stand-in",
        "machine_id": machine_id(),
        "gpu_uuid": loop.gpu.identity().uuid if loop.gpu else None,
        "wall_start": begun.isoformat(timespec="seconds"),
        "runs": [asdict(run) for run in runs],
    }
    (results / "loops").mkdir(exist_ok=True)
    path = results / "loops" / f"{begun:%Y%m%dT%H%M%SZ}-{way}.json"
    write_atomic(path, json.dumps(found, indent=1) + "\n")
    click.echo(f"{path}: {len(runs)} runs, {(runs[-1].end_ns - runs[0].begin_ns) / 1e9 / len(runs):.1f} s each")


next(option for option in main.params if option.name == "workers").hidden = True  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
