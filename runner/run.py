"""The life of one run or prime, from an idle GPU to a complete folder. Nothing it started outlives it."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from analysis.formats.run_record import RunRecord
from analysis.gates_gpu import IDLE_LIMIT_MIB, MEMORY_SLACK_MIB
from runner import http
from runner.bench_client import BenchClient
from runner.context import Measured, RunContext
from runner.errors import EngineFailed
from runner.finish import collect, complete
from runner.memory import utilization_for
from runner.nvml import Gpu, NvmlFailed
from runner.processes import POLL_S, Child, cpu_shares, free_port, marked
from runner.telemetry import Telemetry
from runner.watch import Stopped, Watch, death

MEMORY_WAIT_S = 60.0
PROBE_WAIT_S = 300.0
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
    telemetry = Telemetry(ctx.gpu, ctx.directory / "telemetry.csv") if ctx.gpu and ctx.instruments else None
    with ExitStack() as stack:
        if telemetry:
            stack.callback(telemetry.stop)
        try:
            _wait_for_idle_gpu(ctx, measured)
            if telemetry:
                telemetry.start()
            _engine(ctx, measured)
        except EngineFailed as error:
            failure = error
        ctx.on_phase("writing")
        pool = stack.enter_context(ThreadPoolExecutor(1))
        memory = pool.submit(_wait_for_freed_memory, ctx, measured)
        parsed = collect(ctx, measured)
        failure = failure or memory.result()
    return complete(ctx, measured, parsed, failure, telemetry)


def _used_memory_mib(ctx: RunContext, gpu: Gpu, limit_mib: int) -> int:
    """GPU memory in use once it is within the limit, or when the wait is over."""
    deadline = time.monotonic() + MEMORY_WAIT_S
    while (used := gpu.memory_used_mib()) > limit_mib and time.monotonic() < deadline:
        time.sleep(POLL_S)
        if ctx.stop_requested.is_set():
            raise Stopped
    return used


def _holders(gpu: Gpu) -> str:
    pids = gpu.processes()
    return f"processes {', '.join(map(str, pids))}" if pids else "processes that this user cannot see"


def _wait_for_idle_gpu(ctx: RunContext, measured: Measured) -> None:
    if (gpu := ctx.gpu) is None:
        return
    ctx.on_phase("waiting for an idle GPU")
    used = _used_memory_mib(ctx, gpu, IDLE_LIMIT_MIB)
    if used > IDLE_LIMIT_MIB:
        message = f"{used} MiB of GPU memory are in use before the start, by {_holders(gpu)}"
        raise EngineFailed(message, "gpu_busy", "end these processes, or choose another GPU with --gpu")
    measured.idle_gpu_memory_mib, pids = used, gpu.processes()
    measured.gpu_processes_before = None if pids is None else tuple(pids)


def _wait_for_freed_memory(ctx: RunContext, measured: Measured) -> EngineFailed | None:
    """Until the GPU's memory is what it was before the start; what is wrong if it is not. Raises Stopped."""
    gpu, idle = ctx.gpu, measured.idle_gpu_memory_mib
    if gpu is None or idle is None:
        return None
    try:
        used = _used_memory_mib(ctx, gpu, idle + MEMORY_SLACK_MIB)
    except NvmlFailed as error:
        return EngineFailed(error.message, "gpu_lost", error.hint)
    if used > idle + MEMORY_SLACK_MIB:
        return EngineFailed(
            f"{used} MiB of GPU memory are still in use {MEMORY_WAIT_S:.0f} s after the engine's end "
            f"({idle} MiB before its start), by {_holders(gpu)}",
            "gpu_memory_not_freed",
            "end these processes; if there are none, reset the GPU",
        )
    measured.mark("memory_freed_ns")
    return None


def _engine(ctx: RunContext, measured: Measured) -> None:
    """From the server's exec to its end. Whatever happens, no process is left when it returns or raises."""
    config, host, port = ctx.config, ctx.host, free_port()
    setting = partial(
        host.environment, config, marker=ctx.marker, gpu_index=ctx.gpu.identity().index if ctx.gpu else None
    )
    environments = setting(steps_file=ctx.directory / "steps.csv") if ctx.instruments else setting(plug_in=False)
    measured.engine_environment = environments[1]
    share = utilization_for(config, ctx.gpu)
    measured.serve_argv = tuple(host.serve_argv(config, ctx.model, port, share, ctx.arm_flags, ctx.instruments))
    grace_s = HURRIED_STOP_S
    ctx.on_phase("starting")
    with ExitStack() as stack:
        stack.callback(host.end_leftovers, ctx.marker)
        gpu = ctx.gpu.identity() if ctx.gpu else None
        server = host.start_server(measured.serve_argv, environments, ctx.directory / "server.log", ctx.marker, gpu)
        stack.callback(lambda: _stop_server(server, measured, grace_s))
        measured.moments["exec_ns"] = server.exec_ns
        watch = Watch(ctx.stop_requested, server, ctx.on_phase)
        client = None
        if ctx.profile is not None:
            seed, result = ctx.identity.seed or 0, ctx.directory / "bench.raw.json"
            measured.bench_argv = tuple(
                host.bench_argv(config, ctx.model, ctx.profile, port=port, seed=seed, result=result)
            )
            client = BenchClient(
                "bench client", measured.bench_argv, setting()[0], ctx.directory / "bench.log", host.cpus
            )
            stack.callback(client.stop, 0.0)
            watch.client = client
        _until_probed(ctx, measured, watch, port)
        if client is not None:
            _load(ctx, measured, watch, client, port)
        watch.phase("stopping")
        grace_s = config.engine.timeouts.stop_s


def _stop_server(server: Child, measured: Measured, grace_s: float) -> None:
    if server.poll() is None:
        measured.mark("stop_ns")
    server.stop(grace_s)
    measured.mark("exited_ns")
    measured.container = server.facts()


def _until_probed(ctx: RunContext, measured: Measured, watch: Watch, port: int) -> None:
    """Healthy, probed, of the right version, counters read."""
    engine = ctx.config.engine
    measured.moments["healthy_ns"] = watch.until_healthy(port, engine.timeouts)
    watch.phase("probing")
    prompt = [PROBE_TOKENS[i * 7919 % len(PROBE_TOKENS)] for i in range(engine.probe.input_tokens)]
    path = ctx.host.model_path(ctx.model)
    measured.moments |= watch.call(partial(http.probe, port, path, prompt, engine.probe.output_tokens, PROBE_WAIT_S))
    measured.engine_version = watch.call(partial(http.engine_version, port))
    if measured.engine_version.partition("+")[0] != engine.version:
        raise EngineFailed(
            f"the engine is vLLM {measured.engine_version}, campaign.toml asks for {engine.version}",
            "engine_version",
            "check --engine-python and --engine-path",
        )
    measured.metrics["before"] = watch.call(partial(http.fetch, port, "/metrics"))


def _load(ctx: RunContext, measured: Measured, watch: Watch, client: BenchClient, port: int) -> None:
    """The held-back client: wait until it is ready, let go, wait for its end, read the counters again."""
    timeouts, host = ctx.config.engine.timeouts, ctx.host
    watch.phase("waiting for the client")
    measured.moments["bench_ready_ns"] = watch.until(client.ready_ns, timeouts.start_s, "client_not_ready")
    watch.phase("measuring")
    watch.client = None  # from here on its end is what is waited for
    cpu_shares(host.cpus)
    measured.moments["go_ns"] = client.go()
    status = watch.until(client.poll, timeouts.bench_s, "bench_timeout")
    measured.mark("bench_exit_ns")
    measured.cpu_busy_pct, measured.cpu_stolen_pct = cpu_shares(host.cpus)
    watch.call(partial(http.fetch, port, "/health"))
    measured.own_processes = {process.pid for process in marked(ctx.marker)} if ctx.gpu else set()
    if status != 0:
        raise death(client, watch.doing, "client_failed")
    measured.metrics["after"] = watch.call(partial(http.fetch, port, "/metrics"))
