"""Gates on the engine's own account: metrics, step trace, and whether the arm ran as asked."""

import json
from argparse import ArgumentError, ArgumentParser
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low, mode, quantiles

from analysis.formats.run_record import RunRecord
from analysis.formats.server_log import missing_facts
from analysis.formats.steps import StepRow
from analysis.gate import Evidence, Seen

DRIFT = 0.05
DRIFT_STEPS = 20  # in a third; of fewer no median is made, nor a 10th and 90th percentile
UNEVEN = 1.25  # times the 10th percentile: 1.11 at most with graphs on a GPU; eager: 1.13 undisturbed


def metrics_missing(e: Evidence) -> Seen:
    """The engine's /metrics were read before and after the load."""
    wanted = ("vllm:num_preemptions_total", "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total")
    before = e.before if e.measured else e.before or e.after  # a prime has no load: one scrape is enough
    for scrape, metrics in (("before", before), ("after", e.after if e.measured else before)):
        if metrics is None:
            yield f"no /metrics {scrape} the load"
        elif absent := [name for name in wanted if metrics.value(name) is None]:
            yield f"/metrics {scrape} the load lack {absent[0]}"
        elif metrics.num_gpu_blocks is None:
            yield f"/metrics {scrape} the load lack num_gpu_blocks"


def step_trace_missing(e: Evidence) -> Seen:
    """The step trace exists and has steps."""
    if e.measured and e.record.instruments and not e.rows:
        yield "no step trace" if e.steps is None else "the step trace is empty"


def instruments_off(e: Evidence) -> Seen:
    """A run has its instruments: step trace and GPU samples."""
    if not e.record.instruments:
        yield "without instruments as asked; every gate on step trace and GPU samples is not applicable"


def instruments_not_off(e: Evidence) -> Seen:
    """A run of an arm without instruments has neither step trace nor GPU samples."""
    for what, found in (("a step trace", e.steps), ("telemetry", e.telemetry)):
        if found is not None and not e.record.instruments:
            yield f"it has {what}"


def step_trace_incomplete(e: Evidence) -> Seen:
    """The step trace ends with its end line, and no step was dropped or misread."""
    if e.measured and e.steps and not e.steps.complete:
        yield f"the trace was cut off after {len(e.rows)} steps"
    elif e.measured and e.steps and (e.steps.dropped or e.steps.errors):
        yield f"dropped {e.steps.dropped}, misread {e.steps.errors} of {len(e.rows)} steps"


def steps_disagree_with_metrics(e: Evidence) -> Seen:
    """The step trace's tokens and preemptions sum to the engine's counters."""
    if e.steps is None or not e.steps.complete or e.after is None or not e.measured:
        return
    for column, metric in (
        ("generated_tokens", "vllm:generation_tokens_total"),
        ("prompt_tokens", "vllm:prompt_tokens_total"),
        ("preempted", "vllm:num_preemptions_total"),
    ):
        engine, traced = e.after.value(metric), e.steps.total(column) or 0
        if engine is not None and engine != traced:
            yield f"{column} in the trace {traced}, {metric} {engine:.0f}"


def steps_disagree_with_client(e: Evidence) -> Seen:
    """The steps between the client's first request and its end hold exactly the client's tokens."""
    begin_ns, end_ns = e.record.timeline.window_begin_ns, e.record.timeline.bench_exit_ns
    if e.steps and e.steps.complete and e.bench and begin_ns is not None and end_ns is not None:
        traced = sum(row.generated_tokens or 0 for row in e.rows if begin_ns <= row.t_ns <= end_ns)
        client = sum(row.output_tokens for row in e.served)
        if traced != client:
            yield f"{traced} tokens in the trace's window, the client got {client}"


def step_time_drift(e: Evidence) -> Seen:
    """Steps that only decode take equally long in each third of the window, within the share DRIFT (medians; steps with
    no fewer running requests than the window's median). How large it is, its tenths tell too."""
    rows = _paced(e)
    usual = median_low([row.running or 0 for row in rows] or [0])
    steps = [ms for row, ms in _decode_steps(rows) if (row.running or 0) >= usual]
    if (n := len(steps)) < 3 * DRIFT_STEPS:
        return
    thirds, tenths = ([median(steps[n * i // k : n * (i + 1) // k]) for i in range(k)] for k in (3, 10))
    if max(thirds) > (1 + DRIFT) * min(thirds):
        told, least, most = ", ".join(f"{ms:.2f}" for ms in thirds), min(tenths), max(tenths)
        range_ms = f"{least:.2f} to {most:.2f} ms in its tenths {_more(most, least)}"
        yield f"a step took {told} ms in the window's thirds, {range_ms}"


def step_time_uneven(e: Evidence) -> Seen:
    """Steps that only decode, for the number of requests that is commonest in the window, take about equally long: the
    90th percentile is at most UNEVEN times the 10th."""
    steps = _decode_steps(_paced(e))
    usual = mode([row.generated_tokens for row, _ in steps] or [0])
    steps_ms = [ms for row, ms in steps if row.generated_tokens == usual]
    if len(steps_ms) >= DRIFT_STEPS:
        p10, p50, p90 = quantiles(steps_ms, n=10, method="inclusive")[::4]
        if p90 > UNEVEN * p10:
            yield f"p10, p50, p90 of {len(steps_ms)} steps: {p10:.2f}, {p50:.2f}, {p90:.2f} ms {_more(p90, p10)}"


def padding_not_reported(e: Evidence) -> Seen:
    """With --cudagraph-metrics the step trace tells padded tokens."""
    reported = any(row.unpadded_tokens is not None for row in e.rows)
    if e.rows and not reported and "--cudagraph-metrics" in e.record.serve_argv:
        yield f"none of {len(e.rows)} steps has a token count"


def engine_version(e: Evidence) -> Seen:
    """The engine that ran is the one recorded."""
    wanted, found = e.record.engine.version, e.log.vllm_version if e.log else None
    if wanted and found and wanted != found and not found.startswith(f"{wanted}+"):
        yield f"recorded {wanted}, the log says {found}"


def simulated_engine(e: Evidence) -> Seen:
    """A run is recorded as simulated if and only if the stand-in engine ran."""
    if e.log and e.log.simulated != e.record.engine.simulated:
        yield f"the log's engine is {'the stand-in' if e.log.simulated else 'not the stand-in'}"


def log_format_unknown(e: Evidence) -> Seen:
    """The engine's log holds every line that a log of this arm must hold."""
    asked = _asked(e.record.serve_argv)
    if e.log is None:
        yield "no server log"
    elif missing := missing_facts(e.log, graphs=asked.graphs, compiled=asked.compiled, gpu=_gpu_log(e.record)):
        yield f"missing: {', '.join(missing)}"


def arm_not_confirmed(e: Evidence) -> Seen:
    """The engine's own account of its configuration is that of the arm."""
    if e.log is None:
        return
    asked = _asked(e.record.serve_argv)
    if e.log.enforce_eager not in (None, asked.eager):
        yield f"enforce_eager is {e.log.enforce_eager}, asked for {asked.eager}"
    if asked.mode and not asked.eager and e.log.cudagraph_mode not in (None, asked.mode):
        yield f"cudagraph_mode is {e.log.cudagraph_mode}, asked for {asked.mode}"
    if e.log.num_gpu_blocks_override != asked.blocks:
        yield f"num_gpu_blocks_override is {e.log.num_gpu_blocks_override}, asked for {asked.blocks}"
    in_effect = next((m.num_gpu_blocks for m in (e.after, e.before) if m is not None), None)
    if asked.blocks is not None and in_effect not in (None, asked.blocks):
        yield f"{in_effect} KV blocks in effect, asked for {asked.blocks}"
    modes = {row.runtime_mode for row in e.rows} - {None}
    ran_graphs = not modes.isdisjoint(("FULL", "PIECEWISE"))
    captured = (e.log.graphs_captured_piecewise or 0) + (e.log.graphs_captured_full or 0)
    if not asked.graphs and (captured or e.log.capture_s is not None or ran_graphs):
        yield f"{captured} CUDA graphs captured, none asked for"
    if asked.graphs and _gpu_log(e.record):
        if e.log.cudagraph_mode == "NONE":
            yield "cudagraph_mode is NONE, graphs asked for"
        if modes and not ran_graphs:
            yield "no step ran a CUDA graph"
        sizes = e.log.capture_sizes
        if sizes and asked.largest not in (None, sizes[-1]):
            yield f"largest capture size is {sizes[-1]}, asked for {asked.largest} (the engine cuts to a default size)"
        if sizes and asked.sizes and set(asked.sizes) != set(sizes):
            yield f"capture sizes are {sizes[0]} to {sizes[-1]} ({len(sizes)}), asked for {len(asked.sizes)} others"


def cold_compile_cache(e: Evidence) -> Seen:
    """A run of an arm that compiles found its compile cache warm."""
    state = e.log.compile_cache if e.log else None
    if e.measured and state in ("cold", "partial", "invalid"):
        yield f"the cache was {state}"


def jit_in_window(e: Evidence) -> Seen:
    """No kernel was compiled while requests were measured."""
    t = e.record.timeline
    if e.log is None or t.healthy_ns is None or t.window_begin_ns is None:
        return
    begin_s = (t.window_begin_ns - t.healthy_ns) / 1e9
    end_s = ((t.window_end_ns or t.window_begin_ns) - t.healthy_ns) / 1e9
    times = [(j.after_ready_s, j.kernel) for j in e.log.jit_events if j.after_ready_s is not None]
    late = [(s, kernel) for s, kernel in times if begin_s + 1 <= s <= end_s + 1]  # log times may be 1 s too late
    for after_s, kernel in late:
        yield f"{len(late)} compilations, first {kernel} about {after_s} s after the start"


def engine_errors(e: Evidence) -> Seen:
    """The engine logged no error before it was told to stop."""
    if e.log and (lines := e.log.error_lines):
        yield f"{len(lines)} error lines, first: {lines[0][:300]}"


@dataclass(frozen=True)
class _Asked:
    """What a serve command line asks for; None or empty: left to the engine."""

    eager: bool
    mode: str | None  # of CUDA graphs
    compiled: bool
    blocks: int | None
    largest: int | None  # capture size
    sizes: tuple[int, ...]

    @property
    def graphs(self) -> bool:
        return not self.eager and self.mode != "NONE"


def _asked(argv: tuple[str, ...]) -> _Asked:
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--num-gpu-blocks-override", type=int)
    parser.add_argument("--max-cudagraph-capture-size", type=int)
    parser.add_argument("--cudagraph-capture-sizes", type=int, nargs="*", default=())
    parser.add_argument("-cc", "--compilation-config", type=json.loads, default={}, dest="config")
    for key in ("cudagraph_mode", "mode"):
        parser.add_argument(f"-cc.{key}", f"--compilation-config.{key}", dest=key)
    try:
        flags, _ = parser.parse_known_args(argv)
    except ArgumentError:  # the engine took what cannot be read here: then nothing is known to be asked for
        flags, _ = parser.parse_known_args(())
    mode = flags.cudagraph_mode or flags.config.get("cudagraph_mode")
    level = flags.mode or flags.config.get("mode", 3)
    return _Asked(
        eager=flags.enforce_eager,
        mode=mode and mode.upper(),
        compiled=not flags.enforce_eager and str(level).upper() in ("3", "VLLM_COMPILE"),
        blocks=flags.num_gpu_blocks_override,
        largest=flags.max_cudagraph_capture_size,
        sizes=tuple(flags.cudagraph_capture_sizes),
    )


def _gpu_log(record: RunRecord) -> bool:
    """The log has the GPU build's lines: a GPU was used, or the stand-in, which writes them too."""
    return record.gpu is not None or record.engine.kind == "stand-in"


def _paced(e: Evidence) -> list[StepRow]:
    """The window's steps; of a simulated engine, whose steps are sleeps, none."""
    begin_ns, end_ns = e.record.timeline.window_begin_ns, e.record.timeline.window_end_ns
    if begin_ns is None or end_ns is None or e.record.engine.simulated:
        return []
    return [row for row in e.rows if begin_ns <= row.t_ns <= end_ns]


def _decode_steps(rows: list[StepRow]) -> list[tuple[StepRow, float]]:
    """The steps that only decode, each with its time since the step before in ms. One of more tokens than requests that
    got one reads a prompt too: a preempted request's anew does not count in prompt_tokens. The last before such a step
    is left out: its results come when that one begins, up to 60 ms late."""
    decodes = [row.prompt_tokens == 0 and (row.generated_tokens or 0) >= (row.unpadded_tokens or 1) for row in rows]
    moves = zip(pairwise(rows), pairwise(decodes[1:]), strict=False)  # each with whether it and the next decode
    return [(row, (row.t_ns - before.t_ns) / 1e6) for (before, row), both in moves if all(both)]


def _more(most_ms: float, least_ms: float) -> str:
    return f"(+{most_ms / max(least_ms, 1e-6) - 1:.0%})"
