"""Validity gates: each fires on the input that it exists for, and none on a recorded good run."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import cache
from inspect import isfunction
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from analysis import gates_campaign, gates_engine, gates_gpu, gates_load, gates_record
from analysis.formats.bench import BenchResult, parse_bench
from analysis.formats.metrics import Metrics, parse_metrics
from analysis.formats.run_record import ContainerFacts, EngineIdentity, RunRecord, Timeline
from analysis.formats.server_log import JitEvent, parse_server_log
from analysis.formats.steps import parse_steps
from analysis.gate import TelemetryFacts, Then
from analysis.gates import GATES, Evidence, judge
from tests import recorded
from tests.records import GPU, record

ROOT = Path(__file__).parent.parent
NS = 1_000_000_000
ARMS = {
    recorded.GRAPHS: (),
    recorded.GRAPHS_WARM: (),
    recorded.EAGER: ("--enforce-eager",),
    recorded.MATCHED: ("--num-gpu-blocks-override=2104",),
    recorded.COMPILE_ONLY: ("-cc.cudagraph_mode=NONE", "--num-gpu-blocks-override", "2104"),
}


# runs whose steps wait for the CPU: its pace changed
PACE = ["step_time_drift", "step_time_uneven"]
DRIFTED = dict.fromkeys((recorded.EAGER, recorded.COMPILE_ONLY), PACE)
# figures of another run, on a board limited to 700 W
COOL = TelemetryFacts(
    source="counter",
    largest_gap_s=0.129,
    exec_after_s=0.004,
    least_counted_j=0.0,
    last_memory_mib=0,
    hottest_c=53,
    sm_clock_mhz=1692.4,
    power_capped_pct=72.5,
    slowed_pct=0.0,
    counter_still_s=0.101,
    start_j=7035.5,
    ready_j=1580.7,
    window_j=66913.5,
    tail_j=132.4,
    total_j=75662.1,
    window_error_j=119.5,
    window_integrated_j=66920.0,
)
CARD = {"power_limit_mw": 700_000, "temperature_slowdown_c": 90}


def with_counters(metrics: Metrics, **values: float) -> Metrics:
    """The same scrape with other values; names without their `vllm:`."""
    return Metrics(tuple(s._replace(value=values.get(s.name.removeprefix("vllm:"), s.value)) for s in metrics.samples))


def without(metrics: Metrics, name: str) -> Metrics:
    return Metrics(tuple(s for s in metrics.samples if s.name != name))


@cache
def gpu_run(folder: str = recorded.GRAPHS, cache_hits: float = 0) -> Evidence:
    """A recorded GPU run, with samples of another. Its prefix cache was on, so the hits are set; the scrape before the
    load (not recorded) is made from the one after it: the probe alone; the step trace is put on the client's clock."""
    after = parse_metrics(recorded.text(folder, "metrics.txt"))
    after = with_counters(after, prefix_cache_hits_total=cache_hits)
    before = with_counters(
        after,
        generation_tokens_total=1,
        prompt_tokens_total=32,
        request_params_max_tokens_sum=1,
        num_preemptions_total=0,
        prefix_cache_hits_total=0,
    )
    bench = parse_bench(recorded.data(folder, "bench.json"))
    assert bench.window_s is not None
    begin_ns, end_ns = (round(edge * 1e9) for edge in bench.window_s)
    trace = parse_steps(recorded.steps_csv(folder))
    shift_ns = end_ns - max(row.t_ns for row in trace.rows if row.unpadded_tokens is not None)
    return Evidence(
        record=record(
            "32b.graphs.sustained.r1",
            serve_argv=("vllm", "serve", "/models/x", "--cudagraph-metrics", *ARMS[folder]),
            num_prompts=500,
            input_tokens=1024,
            output_tokens=128,
            range_ratio=0.0,
            warmup_requests=2,
            timeline=Timeline(
                run_begin_ns=0,
                healthy_ns=begin_ns - 25 * NS,
                window_begin_ns=begin_ns,
                window_end_ns=end_ns,
                bench_exit_ns=end_ns + NS,
            ),
            num_gpu_blocks=after.num_gpu_blocks,
            idle_gpu_memory_mib=0,
            gpu_processes_before=(),
        ),
        log=replace(parse_server_log(recorded.text(folder, "server.log")), compile_cache="warm"),
        bench=bench,
        before=before,
        after=after,
        steps=replace(trace, rows=tuple(row._replace(t_ns=row.t_ns + shift_ns) for row in trace.rows)),
        telemetry=COOL,
        sitting={"gpu": CARD},
    )


@cache
def cpu_run() -> Evidence:
    """The recorded run of the CPU build, as it is."""
    return Evidence(
        record=record(
            "tiny.eager.sustained.r1",
            gpu=None,
            serve_argv=("vllm", "--enforce-eager", "--num-gpu-blocks-override", "40", "--cudagraph-metrics"),
            num_prompts=20,
            input_tokens=64,
            output_tokens=60,
            warmup_requests=2,
            num_gpu_blocks=40,
            timeline=Timeline(
                run_begin_ns=0,
                healthy_ns=1_064_799_006_377,
                window_begin_ns=1_074_997_694_829,
                window_end_ns=1_075_636_860_604,
                bench_exit_ns=1_076_000_000_000,
            ),
        ),
        log=parse_server_log(recorded.text(recorded.CPU, "server.log")),
        bench=parse_bench(recorded.data(recorded.CPU, "bench.json")),
        before=parse_metrics(recorded.text(recorded.CPU, "metrics_before.txt")),
        after=parse_metrics(recorded.text(recorded.CPU, "metrics_after.txt")),
        steps=parse_steps(recorded.steps_csv(recorded.CPU)),
    )


def codes(evidence: Evidence) -> list[str]:
    return [reason.code for reason in judge(evidence)]


@pytest.mark.parametrize(("first_s", "ready_s"), [(0.0, 0.0), (12.0, 4.0), (-1.0, -1.0)])
def test_a_start_may_be_longer_than_its_log(first_s: float, ready_s: float) -> None:
    assert codes(clocked(gpu_run(), first_s, ready_s)) == []


def test_none_fires_on_the_recorded_cpu_run() -> None:
    assert codes(cpu_run()) == ["step_time_drift"]  # within 0.64 s, on a shared machine


@pytest.mark.parametrize("folder", recorded.GPU_RUNS)
def test_none_fires_on_recorded_gpu_runs(folder: str) -> None:
    assert codes(gpu_run(folder)) == DRIFTED.get(folder, [])


def test_recorded_cache_hits_are_seen() -> None:
    """These runs were recorded with the prefix cache on; warm-ups share the first request's prompt."""
    reasons = judge(gpu_run(recorded.GRAPHS, cache_hits=2016))
    assert [(r.code, r.severity) for r in reasons] == [("prefix_cache_hits", "invalid")]
    assert "2016 of 1492000" in reasons[0].evidence


def bench(e: Evidence, first: dict[str, Any] | None = None, **scalars: Any) -> Evidence:
    """Change the result's scalars and its first request."""
    assert e.bench is not None
    rows = (e.bench.requests[0]._replace(**(first or {})), *e.bench.requests[1:])
    return replace(e, bench=BenchResult(e.bench.scalars | scalars, rows))


def changed(e: Evidence, **fields: Any) -> Evidence:
    values = {name: getattr(e.record, name) for name in RunRecord.model_fields}
    return replace(e, record=RunRecord(**(values | fields)))


def log(e: Evidence, **facts: Any) -> Evidence:
    assert e.log is not None
    return replace(e, log=replace(e.log, **facts))


def after(e: Evidence, **values: float) -> Evidence:
    assert e.after is not None
    return replace(e, after=with_counters(e.after, **values))


def steps(e: Evidence, **fields: Any) -> Evidence:
    assert e.steps is not None
    return replace(e, steps=replace(e.steps, **fields))


def all_failed(e: Evidence) -> Evidence:
    return replace(e, bench=parse_bench(recorded.data("cpu-errors", "bench_dead_server.json")))


def telemetry(e: Evidence, **facts: Any) -> Evidence:
    assert e.telemetry is not None
    return replace(e, telemetry=replace(e.telemetry, **facts))


def started(e: Evidence, start_s: float, logged_s: int, **clock_s: int) -> Evidence:
    t = e.record.timeline
    exec_ns = (t.healthy_ns or 0) - round(start_s * NS)
    facts = log(e, start_s=logged_s, first_clock_s=None, ready_clock_s=None)
    return changed(log(facts, **clock_s), timeline=t.model_copy(update={"exec_ns": exec_ns}))


def clocked(e: Evidence, first_s: float = 0.0, ready_s: float = 0.0) -> Evidence:
    """A start of 30 s of a log whose first line is `first_s` after it, and whose last `ready_s` before health."""
    t = e.record.timeline
    begin_s = datetime.fromisoformat(e.record.wall_start).timestamp() - t.run_begin_ns / NS
    healthy_s = begin_s + (t.healthy_ns or 0) / NS
    clocks = {"first_clock_s": round(healthy_s - 30 + first_s) % 900, "ready_clock_s": round(healthy_s - ready_s) % 900}
    return started(e, 30.0, 20, **clocks)


def moment(e: Evidence, **moments: int) -> Evidence:
    return changed(e, timeline=e.record.timeline.model_copy(update=moments))


def client_moments(e: Evidence, **at_s: int | None) -> Evidence:
    """Seconds after the window's begin."""
    t = e.record.timeline
    moments = {"exec_s": "exec_ns", "ready_s": "bench_ready_ns", "go_s": "go_ns"}
    ns = {moments[k]: None if s is None else (t.window_begin_ns or 0) + s * NS for k, s in at_s.items()}
    return changed(e, timeline=t.model_copy(update=ns))


def in_container(e: Evidence) -> Evidence:
    facts = ContainerFacts(id="1", image="i", image_id="i", image_digests=(), exit_code=0, oom_killed=False)
    return changed(e, container=facts)


def commands(e: Evidence, seed: int | None = 7, weights: str = "dummy", dummy: bool = True) -> Evidence:
    """With a client of seed 7."""
    argv = (*e.record.serve_argv, *(("--load-format", "dummy") if dummy else ()))
    return changed(e, seed=seed, weights=weights, serve_argv=argv, bench_argv=("bench", "--seed", "7"))


def at_machine(e: Evidence, **provenance: Any) -> Evidence:
    return replace(e, sitting=provenance)


def step(e: Evidence, **values: Any) -> Evidence:
    """Change a step in which a graph ran."""
    assert e.steps is not None
    at = max(i for i, row in enumerate(e.steps.rows[:-9]) if row.runtime_mode == "FULL")
    rows = (*e.steps.rows[:at], e.steps.rows[at]._replace(**values), *e.steps.rows[at + 1 :])
    return changed(steps(e, rows=rows), concurrency=64)


def faster_steps(e: Evidence) -> Evidence:
    """A tenth faster, from the window's begin on."""
    assert e.steps is not None
    begin_ns = e.record.timeline.window_begin_ns or 0
    return steps(
        e, rows=tuple(r._replace(t_ns=min(r.t_ns, round(begin_ns + 0.9 * (r.t_ns - begin_ns)))) for r in e.steps.rows)
    )


def itls(*us: int) -> dict[str, int]:
    """What a request has of its times between tokens."""
    return {"itls": len(us), "itl_sum_us": sum(us), "itl_least_us": min(us)}


def in_one_chunk(e: Evidence) -> dict[str, int]:
    """The first request's times between tokens if its second and third token had come together."""
    assert e.bench is not None
    first, second, *rest = e.bench.requests[0].itl_us
    return itls(first + second, 0, *rest)


def drawing(e: Evidence, watts: float) -> Evidence:
    """In a window of 101.6 s, of which the reading's error is 1.2 W."""
    joules = watts * (e.window_s or 0)
    return telemetry(e, window_j=joules, window_integrated_j=joules)


def lasting(e: Evidence, longer_s: float, **scalars: Any) -> Evidence:
    """The client's duration beyond its requests, with the throughput that follows."""
    assert e.bench is not None
    duration = e.bench.duration_s + longer_s
    return bench(e, duration=duration, output_throughput=64_000 / duration, **scalars)


def later_steps(e: Evidence, seconds: float) -> Evidence:
    assert e.steps is not None
    return steps(e, rows=tuple(row._replace(t_ns=row.t_ns + round(seconds * NS)) for row in e.steps.rows))


def slower(e: Evidence, factor: float, part: int, of: int = 3) -> Evidence:
    """Every step in a part of the window takes longer."""
    assert e.steps is not None
    t, rows, at_ns = e.record.timeline, [], e.steps.rows[0].t_ns
    begin_ns, end_ns = t.window_begin_ns or 0, t.window_end_ns or 0
    for a, b in pairwise((e.steps.rows[0], *e.steps.rows)):
        slow = (b.t_ns - begin_ns) * of // (end_ns - begin_ns) == part
        at_ns += round((b.t_ns - a.t_ns) * (factor if slow else 1))
        rows.append(b._replace(t_ns=at_ns))
    return steps(e, rows=tuple(rows))


def stalled(e: Evidence, every: int, factor: float = 1.5) -> Evidence:
    """Every so many steps, evenly, one takes longer."""
    assert e.steps is not None
    rows, at_ns = [], e.steps.rows[0].t_ns
    for i, (a, b) in enumerate(pairwise((e.steps.rows[0], *e.steps.rows))):
        at_ns += round((b.t_ns - a.t_ns) * (factor if i % every == 0 else 1))
        rows.append(b._replace(t_ns=at_ns))
    return steps(e, rows=tuple(rows))


def few_steps(e: Evidence) -> Evidence:
    """Drifting, but with one step less in the window than three medians need."""
    drifting = slower(e, 2.0, 1)
    assert drifting.steps is not None
    begin_ns = e.record.timeline.window_begin_ns or 0
    inside = [row for row in drifting.steps.rows if row.t_ns >= begin_ns]
    alike = {"running": 64, "prompt_tokens": 0, "generated_tokens": 64, "unpadded_tokens": 64}
    return steps(drifting, rows=tuple(row._replace(**alike) for row in inside[:60]))


def short_window(e: Evidence, seconds: float) -> Evidence:
    t = e.record.timeline
    end_ns = (t.window_begin_ns or 0) + round(seconds * NS)
    return changed(e, timeline=t.model_copy(update={"window_end_ns": end_ns}))


def no_padding(e: Evidence) -> Evidence:
    assert e.steps is not None
    return steps(e, rows=tuple(r._replace(unpadded_tokens=None, padded_tokens=None) for r in e.steps.rows))


def version(e: Evidence, text: str | None) -> Evidence:
    return changed(e, engine=EngineIdentity(kind="vllm", version=text, simulated=False))


def window(e: Evidence, begin_s: float, compiled_s: int) -> Evidence:
    """Healthy at 50 s; a kernel compiled `compiled_s` later, as the log's whole seconds tell it."""
    t = Timeline(run_begin_ns=0, healthy_ns=50 * NS, window_begin_ns=int(begin_s * NS), window_end_ns=175 * NS)
    return changed(log(e, jit_events=(JitEvent("k", compiled_s),)), timeline=t)


Break = Callable[[Evidence], Evidence]
# code -> ways to break a good GPU run; each must make this gate fire (others may fire with it)
BROKEN: dict[str, list[Break]] = {
    "no_successful_requests": [
        all_failed,
        lambda e: replace(e, bench=None),
        lambda e: replace(
            e,
            bench=BenchResult(
                e.bench.scalars | {"total_output_tokens": 0},  # type: ignore[union-attr]
                tuple(r._replace(output_tokens=0) for r in e.bench.requests),  # type: ignore[union-attr]
            ),
        ),
    ],
    "failed_requests": [
        all_failed,
        lambda e: bench(e, completed=475, failed=25),
        lambda e: bench(e, {"error": "Traceback\n  ...\nTimeoutError: x"}),
    ],
    "request_count_mismatch": [
        lambda e: bench(e, completed=499),
        lambda e: changed(e, num_prompts=501),
        lambda e: replace(e, bench=replace(e.bench, requests=e.bench.requests[1:])),  # type: ignore[union-attr, type-var]
    ],
    "short_output": [
        lambda e: bench(e, {"output_tokens": 37}),
        lambda e: bench(e, {"output_tokens": 129}),
        lambda e: changed(e, output_tokens=256, range_ratio=0.3),
        lambda e: after(e, request_params_max_tokens_sum=64_300),
    ],
    "input_length_drift": [
        lambda e: bench(e, {"input_tokens": 5827}),
        lambda e: changed(e, input_tokens=10_000, range_ratio=0.3),
    ],
    "zero_or_nonfinite_latency": [
        lambda e: bench(e, {"ttft_s": 0.0}),
        lambda e: bench(e, {"ttft_s": -0.1}),
        lambda e: bench(e, {"ttft_s": float("nan"), "latency_s": float("nan")}),
        lambda e: bench(e, itls(20_000, -1)),
        lambda e: bench(e, {"latency_s": float("inf")}),
    ],
    "token_sum_mismatch": [
        lambda e: bench(e, total_output_tokens=0),
        lambda e: bench(e, total_input_tokens=511_999),
        lambda e: after(e, generation_tokens_total=64_258),
        lambda e: after(e, prompt_tokens_total=600_000),
        lambda e: changed(e, warmup_requests=0),
    ],
    "duration_mismatch": [
        lambda e: bench(e, duration=90.0),
        lambda e: bench(e, duration=0.0),
        lambda e: lasting(e, 8.0, request_rate="inf"),
        lambda e: lasting(e, 12.0, request_rate=1.0),
        lambda e: bench(e, {"start_s": 1.0}),
    ],
    "files_disagree": [
        lambda e: short_window(e, 90.0),
        lambda e: bench(e, {"start_s": 1.0}),
        lambda e: changed(e, num_gpu_blocks=2104),
        lambda e: changed(e, num_gpu_blocks_natural=2104),
        lambda e: bench(e, output_throughput=e.bench.scalars["output_throughput"] * 1.002),  # type: ignore[union-attr]
    ],
    "prefix_cache_hits": [lambda e: after(e, prefix_cache_hits_total=470_000)],
    "metrics_missing": [
        lambda e: replace(e, before=None),
        lambda e: replace(e, after=None),
        lambda e: replace(e, after=without(e.after, "vllm:num_preemptions_total")),  # type: ignore[arg-type]
        lambda e: replace(e, before=without(e.before, "vllm:cache_config_info")),  # type: ignore[arg-type]
    ],
    "step_trace_missing": [lambda e: replace(e, steps=None), lambda e: steps(e, rows=())],
    "instruments_off": [lambda e: changed(replace(e, steps=None, telemetry=None), instruments=False)],
    "instruments_not_off": [
        lambda e: changed(e, instruments=False),
        lambda e: changed(replace(e, steps=None), instruments=False),
    ],
    "step_trace_incomplete": [
        lambda e: steps(e, complete=False),
        lambda e: steps(e, dropped=1),
        lambda e: steps(e, errors=2),
        lambda e: replace(e, steps=parse_steps(recorded.steps_csv(recorded.GRAPHS)[:40_000])),
    ],
    "steps_disagree_with_metrics": [
        lambda e: after(e, num_preemptions_total=54),
        lambda e: steps(e, rows=e.steps.rows[:-500]),  # type: ignore[union-attr]
        lambda e: after(e, prompt_tokens_total=515_073),
    ],
    "steps_disagree_with_client": [
        lambda e: later_steps(e, 2.0),
        lambda e: later_steps(e, -20.0),
        lambda e: bench(e, {"output_tokens": 127}),
    ],
    "step_time_drift": [lambda e, third=third: slower(e, 1.07, third) for third in range(3)],  # type: ignore[misc]
    "step_time_uneven": [lambda e: stalled(e, 5), lambda e: stalled(e, 8, 1.3)],
    "padding_not_reported": [no_padding],
    "engine_version": [lambda e: version(e, "0.23.1"), lambda e: log(e, vllm_version="0.22.0")],
    "simulated_engine": [
        lambda e: log(e, simulated=True),
        lambda e: changed(e, engine=EngineIdentity(kind="stand-in", version="0.23.0", simulated=True)),
    ],
    "log_format_unknown": [
        lambda e: replace(e, log=None),
        lambda e: log(e, kv_tokens=None),
        lambda e: log(e, capture_s=None),
        lambda e: log(e, torch_compile_s=None),
    ],
    "arm_not_confirmed": [
        lambda e: changed(e, serve_argv=("vllm", "serve", "--enforce-eager")),
        lambda e: changed(e, serve_argv=("vllm", "serve", "-cc.cudagraph_mode=NONE")),
        lambda e: changed(e, serve_argv=("vllm", "serve", "--num-gpu-blocks-override=2104")),
        lambda e: changed(e, serve_argv=("vllm", "serve", "--max-cudagraph-capture-size", "64")),
        lambda e: changed(e, serve_argv=("vllm", "serve", "--cudagraph-capture-sizes", "1", "2", "3", "--x")),
        lambda e: changed(log(e, num_gpu_blocks_override=2000), serve_argv=("vllm", "--num-gpu-blocks-override=2k")),
        lambda e: log(e, enforce_eager=True),
        lambda e: log(e, cudagraph_mode="NONE"),
        lambda e: log(e, num_gpu_blocks_natural=1869, num_gpu_blocks_override=2104),
        lambda e: replace(e, steps=parse_steps(recorded.steps_csv(recorded.EAGER))),
        lambda e: changed(log(e, num_gpu_blocks_override=2104), serve_argv=("vllm", "--num-gpu-blocks-override=2104")),
    ],
    "cold_compile_cache": [
        lambda e, state=state: log(e, compile_cache=state)  # type: ignore[misc]
        for state in ("cold", "partial", "invalid")
    ],
    "jit_in_window": [lambda e: window(e, 50.8, 2), lambda e: window(e, 52.0, 100)],
    "engine_errors": [lambda e: log(e, error_lines=("ValueError: x",))],
    "foreign_processes": [
        lambda e: changed(e, gpu_processes_before=(4711,)),
        lambda e: changed(e, gpu_processes_in_window=(4711,)),
    ],
    "gpu_memory_in_use": [
        lambda e: changed(e, idle_gpu_memory_mib=2049),
        lambda e: telemetry(e, last_memory_mib=513),
        lambda e: telemetry(changed(e, idle_gpu_memory_mib=1000), last_memory_mib=1513),
    ],
    "gpu_slowed": [lambda e: telemetry(e, slowed_pct=1.1)],
    "gpu_slowed_briefly": [lambda e: telemetry(e, slowed_pct=0.1), lambda e: telemetry(e, slowed_pct=1.0)],
    "gpu_hot": [
        lambda e: telemetry(e, hottest_c=88),
        lambda e: replace(e, sitting={"gpu": {"temperature_slowdown_c": 55}}),
    ],
    "telemetry_missing": [lambda e: replace(e, telemetry=None)],
    "telemetry_gap": [lambda e: telemetry(e, largest_gap_s=1.01)],
    "energy_unsupported": [lambda e: telemetry(e, source=None, window_j=None)],
    "energy_not_bracketed": [lambda e: telemetry(e, window_j=None)],
    "energy_window_short": [lambda e: short_window(e, 4.99)],
    "energy_counter_static": [lambda e: telemetry(e, counter_still_s=3.0)],
    "energy_counter_reset": [lambda e: telemetry(e, least_counted_j=-0.001)],
    "energy_disagrees": [
        lambda e: telemetry(e, window_integrated_j=66913.5 * 1.051),
        lambda e: telemetry(e, window_integrated_j=66913.5 * 0.949),
    ],
    "energy_above_limit": [
        lambda e: drawing(e, 715.3),
        lambda e: replace(e, sitting={"gpu": {"power_limit_mw": 500_000}}),
    ],
    "name_disagrees": [
        lambda e: changed(e, run_id="32b.eager.sustained.r1"),
        lambda e: changed(e, folder="32b.graphs.sustained.r1.p2a1"),
        lambda e: changed(e, kind="prime"),
        lambda e: changed(e, repetition=2),
        lambda e: changed(e, block_id="32b.sustained.r2"),
        lambda e: changed(e, order_in_block=1),  # of graphs and eager
        lambda e: changed(e, order_in_block=-1),
    ],
    "moments_out_of_order": [
        lambda e: moment(e, healthy_ns=(e.record.timeline.window_begin_ns or 0) + 1),
        lambda e: moment(e, exec_ns=e.record.timeline.window_end_ns or 0),
        lambda e: moment(e, run_end_ns=1),
        lambda e: client_moments(e, exec_s=-30, ready_s=-31),
        lambda e: client_moments(e, exec_s=-30, ready_s=-2, go_s=-3),
    ],
    "start_disagrees_with_log": [
        lambda e: started(e, 10.0, 13),
        lambda e: started(e, 1.0, 4),
        lambda e: clocked(e, ready_s=-3.0),
        lambda e: clocked(e, first_s=-3.0),
    ],
    "start_disagrees_with_samples": [
        lambda e: telemetry(e, exec_after_s=2.01),
        lambda e: telemetry(e, exec_after_s=-0.01),
        lambda e: telemetry(in_container(e), exec_after_s=-0.01),
    ],
    "record_disagrees_with_commands": [
        lambda e: commands(e, seed=8),
        lambda e: commands(e, seed=None),
        lambda e: commands(e, weights="hub"),
        lambda e: commands(e, dummy=False),
        lambda e: changed(e, serve_argv=(*e.record.serve_argv, "--max-model-len", "2048")),
        lambda e: changed(e, engine=EngineIdentity(kind="stand-in", version="0.23.0", simulated=False)),
    ],
    "sitting_disagrees": [
        lambda e: at_machine(e, machine={"boot_id": "boot-2"}),
        lambda e: at_machine(e, engine={"kind": "stand-in"}),
        lambda e: at_machine(e, gpu={"uuid": "GPU-2"}),
        lambda e: at_machine(e, gpu={"name": "Other GPU"}),
        lambda e: at_machine(e, gpu={"memory_total_mib": 1}),
        lambda e: at_machine(e, collected="2026-01-01T00:01:00+00:00"),
    ],
    "summary_disagrees": [
        lambda e: bench(e, mean_ttft_ms=1.0),
        lambda e: bench(e, mean_tpot_ms=e.bench.scalars["mean_tpot_ms"] * 1.002),  # type: ignore[union-attr]
        lambda e: bench(e, mean_itl_ms=e.bench.scalars["mean_itl_ms"] * 0.998),  # type: ignore[union-attr]
        lambda e: bench(e, itls(*(20_000,) * 127)),
        lambda e: bench(e, {"latency_s": e.bench.requests[0].latency_s - 0.002}),  # type: ignore[union-attr]
    ],
    "client_log_disagrees": [
        lambda e: replace(e, client_log={"Failed requests": 1.0}),
        lambda e: replace(e, client_log={"Mean TTFT (ms)": e.bench.scalars["mean_ttft_ms"] + 0.01}),  # type: ignore[union-attr]
    ],
    "impossible_step": [
        lambda e: step(e, kv_usage=1.01),
        lambda e: step(e, kv_usage=-0.01),
        lambda e: step(e, running=65),
        lambda e: step(e, unpadded_tokens=9, padded_tokens=8),
        lambda e: step(e, unpadded_tokens=27, padded_tokens=27),
        lambda e: step(e, t_ns=0),
    ],
    "steps_end_elsewhere": [faster_steps],
    "window_not_sampled": [
        lambda e: replace(telemetry(e, slowed_pct=None), sitting={"gpu": {"throttle_reasons": 0}}),
        lambda e: replace(telemetry(e, hottest_c=None), sitting={"gpu": {"temperature_c": 35}}),
    ],
}
# as near to the rule as it allows: a gate that fires here has its comparison turned or its limit moved
JUST_RIGHT: list[Break] = [
    lambda e: changed(e, num_gpu_blocks_natural=e.record.num_gpu_blocks),
    lambda e: started(e, 10.0, 12),
    lambda e: replace(e, client_log={"Mean TTFT (ms)": round(e.bench.scalars["mean_ttft_ms"], 2)}),  # type: ignore[union-attr]
    lambda e: step(e, kv_usage=1.0, running=64),
    lambda e: at_machine(e, machine={"boot_id": "boot-1"}, engine={"kind": "vllm"}, gpu=GPU.model_dump()),
    lambda e: at_machine(e, collected="2026-01-01T00:00:30+00:00"),
    lambda e: commands(e, seed=7),
    lambda e: commands(e, weights="hub", dummy=False),
    lambda e: replace(telemetry(e, slowed_pct=None), sitting={"gpu": {"throttle_reasons": None}}),
    lambda e: changed(e, idle_gpu_memory_mib=2048),
    lambda e: telemetry(e, last_memory_mib=512),
    lambda e: telemetry(e, slowed_pct=None),
    lambda e: telemetry(e, hottest_c=87),
    lambda e: replace(telemetry(e, hottest_c=99), sitting={}),
    lambda e: telemetry(e, exec_after_s=0.0),
    lambda e: telemetry(e, exec_after_s=2.0),
    lambda e: telemetry(in_container(e), exec_after_s=9.0),
    lambda e: changed(e, order_in_block=0),
    lambda e: log(client_moments(e, exec_s=-30, ready_s=-30, go_s=-3), start_s=None),
    lambda e: client_moments(e, exec_s=None, ready_s=-3, go_s=-3),
    lambda e: telemetry(e, largest_gap_s=1.0),
    lambda e: telemetry(e, counter_still_s=2.99),
    lambda e: telemetry(e, least_counted_j=None, counter_still_s=None),
    lambda e: telemetry(e, window_integrated_j=66913.5 * 1.049),
    lambda e: telemetry(e, window_integrated_j=66913.5 * 0.951),
    lambda e: drawing(e, 715.1),  # 2% above the limit, and the reading's error
    lambda e: bench(e, output_throughput=e.bench.scalars["output_throughput"] * 1.0005),  # type: ignore[union-attr]
    lambda e: bench(e, in_one_chunk(e)),
    lambda e: lasting(e, 8.0, request_rate=1.0),  # the first request of a slow load may come late
    lambda e: changed(e, gpu_processes_before=None, idle_gpu_memory_mib=None),
    lambda e: changed(e, gpu_processes_in_window=()),
    lambda e: changed(replace(e, telemetry=None), gpu=None),
]


def test_every_gate_has_a_breaking_input() -> None:
    assert list(BROKEN) == [gate.code for gate in GATES]
    assert all(gate.check.__doc__ for gate in GATES)  # what must hold


def test_every_check_is_a_gate_and_has_its_entry() -> None:
    modules = (gates_load, gates_engine, gates_gpu, gates_record, gates_campaign)
    checks = {
        name
        for module in modules
        for name, found in vars(module).items()
        if isfunction(found) and found.__module__ == module.__name__ and not name.startswith("_")
    } - {"judge_together"}
    gates = (*GATES, *gates_campaign.GATES)
    assert {gate.code for gate in gates} == checks
    entries = tomllib.loads((ROOT / "analysis" / "gates.toml").read_text(encoding="utf-8"))
    assert list(entries) == [gate.code for gate in gates]
    assert {gate.severity for gate in gates} == {"invalid", "warning"}
    assert {gate.then for gate in gates} == set(get_args(Then))
    assert all(gate.advice.endswith(".") for gate in gates)


@pytest.mark.parametrize(("code", "way"), [(code, way) for code, ways in BROKEN.items() for way in range(len(ways))])
def test_gate_fires(code: str, way: int) -> None:
    reasons = {reason.code: reason for reason in judge(BROKEN[code][way](gpu_run()))}
    assert code in reasons
    gate = next(gate for gate in GATES if gate.code == code)
    assert reasons[code].severity == gate.severity
    assert reasons[code].evidence
    assert reasons[code].advice == gate.advice


@pytest.mark.parametrize("way", range(len(JUST_RIGHT)))
def test_none_fires_at_the_edge_of_a_rule(way: int) -> None:
    assert codes(JUST_RIGHT[way](gpu_run())) == []


@pytest.mark.parametrize(
    ("pct", "code"), [(0.1, "gpu_slowed_briefly"), (1.0, "gpu_slowed_briefly"), (1.1, "gpu_slowed")]
)
def test_slowed_clocks_have_one_reason(pct: float, code: str) -> None:
    assert codes(telemetry(gpu_run(), slowed_pct=pct)) == [code]


@pytest.mark.parametrize("third", range(3))
def test_steps_that_are_a_little_slower_are_no_drift(third: int) -> None:
    assert "step_time_drift" not in codes(slower(gpu_run(), 1.03, third))


def test_too_few_steps_tell_of_no_drift() -> None:
    assert "step_time_drift" not in codes(few_steps(gpu_run()))


@pytest.mark.parametrize(("anew", "drifts"), [(0, True), (300, False)])
def test_slow_steps_that_read_preempted_requests_anew_are_no_drift(anew: int, drifts: bool) -> None:
    """They have more tokens than requests; prompt_tokens does not count them."""
    e = gpu_run()
    rows, at_ns = [], e.record.timeline.window_begin_ns or 0
    for i, row in enumerate(e.steps.rows[:200]):  # type: ignore[union-attr]
        slow = 60 <= i < 140
        at_ns += (20 if slow else 10) * NS // 1000
        tokens = {"prompt_tokens": 0, "generated_tokens": 64, "unpadded_tokens": 64 + (anew if slow else 0)}
        rows.append(row._replace(t_ns=at_ns, running=64, **tokens))
    assert ("step_time_drift" in codes(steps(e, rows=tuple(rows)))) is drifts


def test_the_pace_of_a_simulated_engine_is_its_machine_s() -> None:
    drifted = slower(gpu_run(), 1.07, 1)
    assert "step_time_drift" in codes(drifted)
    engine = drifted.record.engine.model_copy(update={"simulated": True})
    assert "step_time_drift" not in codes(changed(drifted, engine=engine))
    assert "step_time_uneven" not in codes(changed(stalled(gpu_run(), 5), engine=engine))


@pytest.mark.parametrize(("every", "factor"), [(15, 1.5), (20, 3.0), (5, 1.15)])
def test_rare_or_small_stalls_leave_the_steps_even(every: int, factor: float) -> None:
    assert "step_time_uneven" not in codes(stalled(gpu_run(), every, factor))


def test_stalls_all_through_the_window_are_told_where_its_thirds_are_alike() -> None:
    (reason,) = (r for r in judge(stalled(gpu_run(), 5)) if r.code.startswith("step_time"))
    assert reason.code == "step_time_uneven"
    assert reason.evidence == "p10, p50, p90 of 766 steps: 20.23, 20.70, 30.80 ms (+52%)"


def test_steps_of_a_broken_clock_are_judged() -> None:
    """Most steps at the moment of the one before: nothing is divided by no time."""
    rows = tuple(r._replace(t_ns=r.t_ns // 10**8 * 10**8) for r in gpu_run().steps.rows)  # type: ignore[union-attr]
    assert "step_time_uneven" in codes(steps(gpu_run(), rows=rows))


def test_too_few_decode_steps_tell_of_no_unevenness() -> None:
    uneven = stalled(gpu_run(), 5)
    inside = [r for r in uneven.steps.rows if r.t_ns >= (uneven.record.timeline.window_begin_ns or 0)]  # type: ignore[union-attr]
    alike = [r._replace(running=9, prompt_tokens=0, generated_tokens=9, unpadded_tokens=9) for r in inside]
    assert "step_time_uneven" in codes(steps(uneven, rows=tuple(alike[:22])))  # 20 between a first and a last
    assert "step_time_uneven" not in codes(steps(uneven, rows=tuple(alike[:21])))


@pytest.mark.parametrize(("late", "uneven"), [(4, False), (3, True)])
def test_a_step_before_one_that_reads_a_prompt_tells_nothing(late: int, uneven: bool) -> None:
    """Its results come late, when that one begins. Of six steps the last reads a prompt; `late` is the slow one."""
    e = gpu_run()
    rows, at_ns = [], e.record.timeline.window_begin_ns or 0
    for i, row in enumerate(e.steps.rows[:200]):  # type: ignore[union-attr]
        at_ns += (45 if i % 6 == late else 20) * NS // 1000
        tokens = {"prompt_tokens": 1000 * (i % 6 == 5), "generated_tokens": 31, "unpadded_tokens": 31}
        rows.append(row._replace(t_ns=at_ns, running=31, **tokens))
    assert ("step_time_uneven" in codes(steps(e, rows=tuple(rows)))) is uneven


def test_drift_is_told_in_the_thirds_of_the_window() -> None:
    (reason,) = (r for r in judge(gpu_run(recorded.COMPILE_ONLY)) if r.code == "step_time_drift")
    assert reason.evidence == (
        "a step took 35.75, 24.38, 34.83 ms in the window's thirds, 23.23 to 46.04 ms in its tenths (+98%)"
    )


def test_the_size_of_a_drift_within_a_third_is_told() -> None:
    """A tenth of the window at twice the time hardly moves the median of its third."""
    (reason,) = (r for r in judge(slower(slower(gpu_run(), 2.0, 4, 10), 1.07, 1)) if r.code == "step_time_drift")
    assert reason.evidence == (
        "a step took 20.55, 22.15, 20.56 ms in the window's thirds, 20.51 to 43.49 ms in its tenths (+112%)"
    )


def test_a_window_of_five_seconds_has_energy() -> None:
    assert "energy_window_short" not in codes(short_window(gpu_run(), 5.0))


def test_a_first_start_is_cold_by_nature() -> None:
    run = gpu_run()
    prime = record("32b.graphs.prime", gpu=None, serve_argv=run.record.serve_argv)
    assert codes(Evidence(prime, log=replace(run.log, compile_cache="cold"), before=run.before)) == []  # type: ignore[type-var]


def test_eager_arm_that_captured_graphs_is_not_confirmed() -> None:
    eager = gpu_run(recorded.EAGER)
    assert codes(log(eager, graphs_captured_full=51)) == [*PACE, "arm_not_confirmed"]
    assert "arm_not_confirmed" in codes(replace(eager, steps=gpu_run().steps))


@pytest.mark.parametrize(
    "flags",
    [
        ("-cc.cudagraph_mode=none",),
        ("--compilation-config.cudagraph_mode", "NONE"),
        ("-cc", '{"cudagraph_mode": "NONE", "mode": 3}'),
        ('--compilation-config={"cudagraph_mode": "NONE"}',),
    ],
)
def test_every_spelling_of_a_graph_mode_is_understood(flags: tuple[str, ...]) -> None:
    argv = ("vllm", "serve", "--num-gpu-blocks-override=2104", *flags)
    assert codes(changed(gpu_run(recorded.COMPILE_ONLY), serve_argv=argv)) == PACE
    assert "arm_not_confirmed" in codes(changed(gpu_run(recorded.MATCHED), serve_argv=argv))


def test_capture_sizes_as_asked_are_confirmed() -> None:
    graphs = gpu_run()
    assert graphs.log is not None
    sizes = [str(size) for size in graphs.log.capture_sizes]
    argv = ("vllm", "--cudagraph-capture-sizes", *sizes, "--max-cudagraph-capture-size=512", "--seed", "0")
    assert codes(changed(graphs, serve_argv=argv)) == []


def test_evidence_names_what_was_seen() -> None:
    reasons = judge(bench(gpu_run(), {"output_tokens": 37}, total_output_tokens=63_909))
    short = next(r for r in reasons if r.code == "short_output")
    assert short.evidence == "request 0 has 37 tokens, asked for 128; 1 such requests"


def test_all_failed_run_is_judged_without_an_exception() -> None:
    fired = codes(all_failed(replace(gpu_run(), before=None, after=None, steps=None, log=None)))
    assert fired[:2] == ["no_successful_requests", "failed_requests"]


def test_varied_lengths_within_the_ratio_are_fine() -> None:
    assert codes(changed(gpu_run(), input_tokens=1000, output_tokens=120, range_ratio=0.3)) == []


def test_compilation_before_the_window_is_fine() -> None:
    assert "jit_in_window" not in codes(window(gpu_run(), 52.0, 1))
    assert "jit_in_window" not in codes(window(gpu_run(), 50.8, 1))  # at the probe, 0.1 s after the start


def test_local_build_suffix_of_a_version_is_fine() -> None:
    assert codes(log(gpu_run(), vllm_version="0.23.0+cu130")) == []


def test_prime_needs_no_load() -> None:
    run = gpu_run()
    blocks = run.record.num_gpu_blocks
    prime = record("32b.graphs.prime", gpu=None, serve_argv=run.record.serve_argv, num_gpu_blocks=blocks)
    assert codes(Evidence(prime, log=run.log, before=run.before)) == []
    assert codes(Evidence(prime, log=run.log, after=run.before)) == []
    assert codes(Evidence(prime)) == ["metrics_missing", "log_format_unknown"]
