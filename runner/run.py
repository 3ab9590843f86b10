"""The life of one run or prime, from an idle GPU to a complete folder. Nothing it started outlives it."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial

from analysis.formats.run_record import RunRecord
from runner import http
from runner.bench_client import BenchClient
from runner.context import Measured, RunContext
from runner.errors import EngineFailed
from runner.finish import collect, complete
from runner.memory import utilization_for
from runner.nvml import Gpu, NvmlFailed
from runner.processes import Process, free_port, kill_marked
from runner.standin.hardware import CARD_GIB
from runner.telemetry import Telemetry
from runner.watch import StartWatch, Stopped, Watch, death

__all__ = ["RunContext", "Stopped", "execute_run"]

IDLE_LIMIT_MIB = 2048  # more than this before a start is somebody else's
MEMORY_SLACK_MIB = 512  # above the idle reading: the memory counts as freed
MEMORY_WAIT_S = 60.0
PROBE_WAIT_S = 300.0
WINDOW_POLL_S = 0.05
HURRIED_STOP_S = 5.0  # grace when nothing that the engine could still write is wanted
PROBE_TOKENS = range(50, 450)  # ids that any vocabulary has


def execute_run(ctx: RunContext) -> RunRecord:
    """Run it into `ctx.directory`; returns the record, already written there as run.json.

    A failure of engine or client makes a record with status `failed`. Raises Stopped when a stop was
    requested, StoreError or OSError when files cannot be written, PreflightError when the engine's Python or
    the GPU is not usable at all.
    """
    measured = Measured()
    failure: EngineFailed | None = None
    telemetry = Telemetry(ctx.gpu, ctx.telemetry_csv) if ctx.gpu else None
    try:
        measured.idle_memory_mib = _idle_memory(ctx)
        if telemetry:
            telemetry.start()
        _engine(ctx, measured)
    except EngineFailed as error:
        failure = error
    except BaseException:
        if telemetry:
            telemetry.stop()
        raise
    ctx.on_phase("writing")
    memory = _MemoryFreed(ctx, measured)
    try:
        parsed = collect(ctx, measured)
        failure = failure or memory.result()
    finally:
        if telemetry:
            telemetry.stop()
    return complete(ctx, measured, parsed, failure, telemetry)


def _idle_memory(ctx: RunContext) -> int | None:
    """GPU memory in use before the start (MiB). EngineFailed `gpu_busy` if it stays above the limit."""
    if ctx.gpu is None:
        return None
    ctx.on_phase("waiting for an idle GPU")
    deadline = time.monotonic() + MEMORY_WAIT_S
    while (used := ctx.gpu.memory_used_mib()) > IDLE_LIMIT_MIB:
        if time.monotonic() > deadline:
            raise EngineFailed(
                f"{used} MiB of GPU memory are in use before the start, by {_holders(ctx.gpu)}",
                "gpu_busy",
                "end these processes, or choose another GPU with --gpu",
            )
        if ctx.stop_requested.wait(0.2):
            raise Stopped
    return used


def _holders(gpu: Gpu) -> str:
    pids = sorted(process.pid for process in gpu.processes())
    return f"processes {', '.join(map(str, pids))}" if pids else "processes that this user cannot see"


def _utilization(ctx: RunContext) -> float | None:
    engine = ctx.config.engine
    if ctx.host.kind == "stand-in" and engine.memory_budget_gib is not None:
        return min(1.0, engine.memory_budget_gib / CARD_GIB)
    return utilization_for(ctx.config, ctx.gpu)


def _engine(ctx: RunContext, measured: Measured) -> None:
    """From the server's exec to its end. Whatever happens, no process is left when it returns or raises."""
    model = ctx.config.models[ctx.model]
    port = free_port()
    gpu_index = ctx.gpu.identity().index if ctx.gpu else None
    environment, measured.environment = ctx.host.environment(
        ctx.config, marker=ctx.marker, steps_file=ctx.steps_csv, gpu_index=gpu_index
    )
    measured.serve_argv = tuple(
        ctx.host.serve_argv(
            ctx.config,
            model,
            port=port,
            utilization=_utilization(ctx),
            arm_flags=ctx.arm_flags,
            pinned_blocks=ctx.pinned_blocks,
        )
    )
    grace_s = HURRIED_STOP_S
    ctx.on_phase("starting")
    with ExitStack() as stack:
        stack.callback(kill_marked, ctx.marker)
        server = Process("engine", measured.serve_argv, environment, ctx.server_log, cpus=ctx.host.cpus)
        stack.callback(lambda: _stop_server(server, measured, grace_s))
        measured.moments["exec_ns"] = server.exec_ns
        watch = Watch(ctx.stop_requested, server, ctx.on_phase)
        client = None
        if ctx.profile is not None:
            measured.bench_argv = tuple(
                ctx.host.bench_argv(
                    ctx.config,
                    model,
                    ctx.config.profiles[ctx.profile],
                    port=port,
                    seed=ctx.seed or 0,
                    result=ctx.bench_result,
                )
            )
            client_environment, _ = ctx.host.environment(ctx.config, marker=ctx.marker, gpu_index=gpu_index)
            client = BenchClient(measured.bench_argv, client_environment, ctx.bench_log, cpus=ctx.host.cpus)
            stack.callback(client.stop, 0.0)
            watch.client = client
        _until_probed(ctx, measured, watch, port)
        if client is not None:
            _load(ctx, measured, watch, client, port)
        watch.phase("stopping")
        grace_s = ctx.config.engine.timeouts.stop_s


def _stop_server(server: Process, measured: Measured, grace_s: float) -> None:
    if server.poll() is None:
        measured.mark("stop_ns")
    server.stop(grace_s)
    measured.mark("exited_ns")


def _until_probed(ctx: RunContext, measured: Measured, watch: Watch, port: int) -> None:
    """Healthy, probed, of the right version, counters read."""
    engine = ctx.config.engine
    start = StartWatch(watch, engine.timeouts.start_s, engine.timeouts.silence_s)
    measured.moments["healthy_ns"] = http.wait_healthy(port, start.pause)
    watch.phase("probing")
    prompt = [PROBE_TOKENS[i * 7919 % len(PROBE_TOKENS)] for i in range(engine.probe.input_tokens)]
    path = ctx.host.model_path(ctx.config.models[ctx.model])
    probe = watch.call(partial(http.probe, port, path, prompt, engine.probe.output_tokens, PROBE_WAIT_S))
    measured.moments |= {
        "probe_sent_ns": probe.sent_ns,
        "probe_first_token_ns": probe.first_token_ns,
        "probe_end_ns": probe.end_ns,
    }
    measured.engine_version = watch.call(partial(http.engine_version, port))
    if measured.engine_version.partition("+")[0] != engine.version.partition("+")[0]:
        raise EngineFailed(
            f"the engine is vLLM {measured.engine_version}, campaign.toml asks for {engine.version}",
            "engine_version",
            "check --engine-python and --engine-path",
        )
    measured.metrics["before"] = watch.call(partial(http.fetch, port, "/metrics"))


def _load(ctx: RunContext, measured: Measured, watch: Watch, client: BenchClient, port: int) -> None:
    """The held-back client: wait until it is ready, let go, wait for its end, read the counters again."""
    timeouts = ctx.config.engine.timeouts
    watch.phase("waiting for the client")
    measured.moments["bench_ready_ns"] = watch.until(client.ready_ns, timeouts.start_s, "client_not_ready")
    watch.phase("measuring")
    watch.client = None  # from here on its end is what is waited for
    measured.moments["go_ns"] = client.go()
    status = watch.until(client.poll, timeouts.bench_s, "bench_timeout", WINDOW_POLL_S)
    measured.mark("bench_exit_ns")
    watch.call(partial(http.fetch, port, "/health"))
    if status != 0:
        raise death(client, watch.doing, "client_failed")
    measured.metrics["after"] = watch.call(partial(http.fetch, port, "/metrics"))


class _MemoryFreed:
    """Waits in a thread, while files are written, until the GPU's memory is what it was before the start."""

    def __init__(self, ctx: RunContext, measured: Measured) -> None:
        self._ctx, self._measured = ctx, measured
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gpu-memory", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._wait()
        except NvmlFailed as error:
            self._error = EngineFailed(error.message, "gpu_lost", error.hint)
        except BaseException as error:
            self._error = error

    def _wait(self) -> None:
        gpu, idle = self._ctx.gpu, self._measured.idle_memory_mib
        if gpu is None or idle is None:
            return
        deadline = time.monotonic() + MEMORY_WAIT_S
        while (used := gpu.memory_used_mib()) > idle + MEMORY_SLACK_MIB:
            if time.monotonic() > deadline:
                raise EngineFailed(
                    f"{used} MiB of GPU memory are still in use {MEMORY_WAIT_S:.0f} s after the engine's end "
                    f"({idle} MiB before its start), by {_holders(gpu)}",
                    "gpu_memory_not_freed",
                    "end these processes; if there are none, reset the GPU",
                )
            if self._ctx.stop_requested.wait(0.05):
                raise Stopped
        self._measured.mark("memory_freed_ns")

    def result(self) -> EngineFailed | None:
        """What kept the memory, None if it is free. Raises Stopped."""
        self._thread.join()
        if isinstance(self._error, EngineFailed):
            return self._error
        if self._error is not None:
            raise self._error
        return None
