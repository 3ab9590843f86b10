"""Gates on the record: do its name, moments and place, the files and the sitting tell of one and the same run."""

import math
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from statistics import fmean

from analysis.gate import Evidence, Seen

_ORDER = (
    "run_begin_ns", "exec_ns", "healthy_ns", "probe_sent_ns", "probe_first_token_ns", "probe_end_ns", "go_ns",
    "window_begin_ns", "window_end_ns", "bench_exit_ns", "stop_ns", "exited_ns", "memory_freed_ns", "run_end_ns",
)  # fmt: skip
_CLIENT_ORDER = ("exec_ns", "bench_ready_ns", "go_ns")  # it is started after the engine
LOG_TIME_S = 2.0  # log times are whole seconds
FIRST_SAMPLE_S = 2.0  # it is waited for, then the engine is started
EDGE_S = 1.0  # between the last step and the last token


def name_disagrees(e: Evidence) -> Seen:
    """A run's name is made of what it is, and its place in the block is its arm's."""
    r = e.record
    last = "prime" if r.kind == "prime" else f"{r.profile}.r{r.repetition}"
    block = None if r.kind == "prime" else f"{r.model}.{last}"
    if r.run_id != f"{r.model}.{r.arm}.{last}" or r.folder != f"{r.run_id}.p{r.pass_number}a{r.attempt}":
        yield f"{r.folder} is {r.kind} {r.model}.{r.arm}.{last}, pass {r.pass_number}, attempt {r.attempt}"
    if r.block_id != block:
        yield f"{r.folder} is in block {r.block_id}"
    if (at := r.order_in_block) is not None and r.block_arms[at : at + 1] != (r.arm,):
        yield f"run {at} of its block, in which the arms are {', '.join(r.block_arms)}"


def moments_out_of_order(e: Evidence) -> Seen:
    """A run's moments follow each other."""
    for names in (_ORDER, _CLIENT_ORDER):
        moments = [(name, at) for name in names if (at := getattr(e.record.timeline, name)) is not None]
        for (first, first_ns), (then, then_ns) in pairwise(moments):
            if then_ns < first_ns:
                yield f"{then} is before {first}"


def start_disagrees_with_log(e: Evidence) -> Seen:
    """The engine took at least as long to start as its own log says, and its log's clock agrees."""
    t, log = e.record.timeline, e.log
    if log is None or log.start_s is None or t.exec_ns is None or t.healthy_ns is None:
        return
    start_s = (t.healthy_ns - t.exec_ns) / 1e9
    if start_s + LOG_TIME_S < log.start_s:
        yield f"{start_s:.1f} s, from log line to log line {log.start_s} s"
    early_s, what = max(
        (_clock_s(e, t.healthy_ns, log.ready_clock_s), "healthy before the log says so"),
        (-_clock_s(e, t.exec_ns, log.first_clock_s), "started after the log's first line"),
    )
    if early_s > LOG_TIME_S:
        yield f"{early_s:.1f} s {what}"


def start_disagrees_with_samples(e: Evidence) -> Seen:
    """The engine was started right after the first GPU sample; a container, which is made first, some time after it."""
    after_s, most_s = e.gpu.exec_after_s, math.inf if e.record.container else FIRST_SAMPLE_S
    if after_s is not None and not 0 <= after_s <= most_s:
        yield f"started {after_s:.2f} s after the first sample"


def record_disagrees_with_commands(e: Evidence) -> Seen:
    """run.json and the engine's log name weights, seed, engine and context as the command lines do."""
    r, dummy = e.record, "dummy" in _values(e.record.serve_argv, "--load-format")
    if r.serve_argv and r.bench_argv and dummy != (r.weights == "dummy"):
        yield f"weights are recorded as {r.weights}, the command has {'' if dummy else 'no '}--load-format dummy"
    if r.bench_argv and _values(r.bench_argv, "--seed") != [str(r.seed)]:
        yield f"seed {r.seed}, the client's command has {', '.join(_values(r.bench_argv, '--seed'))}"
    if r.engine.simulated != (r.engine.kind == "stand-in"):
        yield f"a {r.engine.kind} engine recorded as {'' if r.engine.simulated else 'not '}simulated"
    told, logged = _values(r.serve_argv, "--max-model-len"), e.log.max_model_len if e.log else None
    if told and logged is not None and told[-1] != str(logged):
        yield f"--max-model-len {told[-1]}, the engine's log has {logged}"


def sitting_disagrees(e: Evidence) -> Seen:
    """A run took place where and after its sitting's provenance was collected."""
    r, machine, gpu = e.record, e.sitting.get("machine") or {}, e.sitting.get("gpu") or {}
    engine, own = e.sitting.get("engine") or {}, r.gpu.model_dump(exclude={"index"}) if r.gpu else {}
    facts = [("machine", r.machine_id, machine.get("boot_id")), ("engine", r.engine.kind, engine.get("kind"))]
    facts += [(f"gpu.{key}", str(value), gpu.get(key)) for key, value in own.items()]
    for name, recorded, collected in facts:
        if collected is not None and recorded != str(collected):
            yield f"{name} {recorded}, in the sitting's provenance.json {collected}"
    collected = e.sitting.get("collected")
    if isinstance(collected, str) and r.wall_start[:16] < collected[:16]:
        yield f"begun {r.wall_start}, before its sitting's provenance.json ({collected})"


def summary_disagrees(e: Evidence) -> Seen:
    """The client's summary tells what its requests tell."""
    for name, own in _means(e):
        if (said := e.told(name)) is not None and abs(said - own) > 0.001 * abs(own) + 1e-3:
            yield f"{name} {said:.2f}, the requests give {own:.2f}"
    apart = [abs(r.latency_s - r.ttft_s - r.itl_sum_us / 1e6) for r in e.served]
    if max(apart, default=0) > 1e-3:
        yield f"request {apart.index(max(apart))}: latency is not the first token's time and all between tokens"


def client_log_disagrees(e: Evidence) -> Seen:
    """The client's log tells what its result file tells."""
    for label, name in _LOGGED.items():
        logged, result = e.client_log.get(label), e.told(name)
        if logged is not None and result is not None and abs(logged - result) > 0.006:
            yield f"{label} {logged:g} in bench.log, {result:g} in bench.json"


def impossible_step(e: Evidence) -> Seen:
    """Every step is one that the engine can make."""
    sizes, t = e.log.capture_sizes if e.log else (), e.record.timeline
    window, most = range(t.window_begin_ns or 0, t.window_end_ns or 0), e.record.concurrency
    for a, b in pairwise((*e.rows[:1], *e.rows)):
        if b.t_ns < a.t_ns:
            yield f"step {b.step} is before step {a.step}"
        if not 0 <= (b.kv_usage or 0) <= 1 or (b.padded_tokens or 0) < (b.unpadded_tokens or 0):
            yield f"step {b.step}: KV usage {b.kv_usage}, {b.unpadded_tokens} tokens padded to {b.padded_tokens}"
        if most is not None and b.t_ns in window and (b.running or 0) > most:
            yield f"step {b.step}: {b.running} requests ran, of at most {most}"
        if sizes and b.runtime_mode in ("FULL", "PIECEWISE") and b.padded_tokens not in (None, *sizes):
            yield f"step {b.step}: a graph of {b.padded_tokens} tokens was run; none of that size was captured"


def steps_end_elsewhere(e: Evidence) -> Seen:
    """The last step of the load and its last token are at one time."""
    t = e.record.timeline
    if t.window_begin_ns is not None and t.window_end_ns is not None and t.bench_exit_ns is not None:
        times = [r.t_ns for r in e.rows if r.generated_tokens and t.window_begin_ns <= r.t_ns <= t.bench_exit_ns]
        apart_s = abs(max(times, default=t.window_end_ns) - t.window_end_ns) / 1e9
        if apart_s > EDGE_S:
            yield f"{apart_s:.2f} s apart"


def window_not_sampled(e: Evidence) -> Seen:
    """Clocks and heat were sampled in the window where the GPU reports them."""
    for name, value in (("throttle_reasons", e.gpu.slowed_pct), ("temperature_c", e.gpu.hottest_c)):
        if e.telemetry and e.window_s is not None and value is None and e.card.get(name) is not None:
            yield f"no {name} in the window"


_LOGGED = {
    "Successful requests": "completed", "Failed requests": "failed", "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens", "Total generated tokens": "total_output_tokens",
    "Mean TTFT (ms)": "mean_ttft_ms", "Mean TPOT (ms)": "mean_tpot_ms", "Mean ITL (ms)": "mean_itl_ms",
}  # fmt: skip


def _clock_s(e: Evidence, moment_ns: int, logged_s: int | None) -> float:
    """Seconds by which a moment is before a log line, by the wall clock; zones differ by quarters of an hour."""
    if logged_s is None:
        return 0.0
    at = datetime.fromisoformat(e.record.wall_start).timestamp() + (moment_ns - e.record.timeline.run_begin_ns) / 1e9
    return (logged_s - at + 450) % 900 - 450


def _values(argv: tuple[str, ...], flag: str) -> list[str]:
    return [value for name, value in pairwise(argv) if name == flag]


def _means(e: Evidence) -> Iterator[tuple[str, float]]:
    """Of the requests, those that the client's summary tells as well."""
    if e.served:
        yield "mean_ttft_ms", 1e3 * fmean(r.ttft_s for r in e.served)
    decoded = [(r.latency_s - r.ttft_s) / (r.output_tokens - 1) for r in e.served if r.output_tokens > 1]
    between = sum(r.itls for r in e.served)
    if decoded and math.isfinite(sum(decoded)):
        yield "mean_tpot_ms", 1e3 * fmean(decoded)
    if between:
        yield "mean_itl_ms", sum(r.itl_sum_us for r in e.served) / between / 1e3
