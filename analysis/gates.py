"""Validity rules: what must hold before a run's figures are believed.

Each gate is data with one check: it reads the run's evidence and returns what it saw when the rule is broken,
else None. `invalid`: the run is shown and counted but enters no figure. `warning`: it enters, marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from analysis.formats.bench import BenchResult, RequestRow
from analysis.formats.metrics import Metrics
from analysis.formats.run_record import Reason, RunRecord
from analysis.formats.server_log import ServerLog, missing_facts
from analysis.formats.steps import StepTrace


@dataclass(frozen=True)
class Evidence:
    """What a finished run or prime left; None: the file is absent or could not be read."""

    record: RunRecord
    log: ServerLog | None = None
    bench: BenchResult | None = None
    before: Metrics | None = None
    after: Metrics | None = None
    steps: StepTrace | None = None

    @property
    def measured(self) -> bool:
        """A run has a load; a prime is a start alone."""
        return self.record.kind == "run"

    def counted(self, name: str, **labels: str) -> int | None:
        """By how much a counter grew over the load; None if a scrape lacks it."""
        begin = self.before.value(name, **labels) if self.before else None
        end = self.after.value(name, **labels) if self.after else None
        if begin is None or end is None or not math.isfinite(end - begin):
            return None
        return round(end - begin)

    @property
    def served(self) -> tuple[RequestRow, ...]:
        """Requests without an error text."""
        return tuple(r for r in self.bench.requests if not r.error) if self.bench else ()


Check = Callable[[Evidence], str | None]


@dataclass(frozen=True)
class Gate:
    """One rule. `rule`: what must hold; `advice`: the next step when it does not."""

    code: str
    severity: Literal["invalid", "warning"]
    rule: str
    advice: str
    check: Check


_GATES: list[Gate] = []


def _gate(
    code: str, severity: Literal["invalid", "warning"], rule: str, advice: str
) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        _GATES.append(Gate(code, severity, rule, advice, check))
        return check

    return add


def _flag(argv: tuple[str, ...], name: str) -> str | None:
    """Value of the last `name VALUE` or `name=VALUE`; None if absent."""
    value = None
    for i, arg in enumerate(argv):
        if arg.startswith(f"{name}="):
            value = arg[len(name) + 1 :]
        elif arg == name and i + 1 < len(argv):
            value = argv[i + 1]
    return value


def _asked(argv: tuple[str, ...]) -> tuple[bool, str | None, bool]:
    """(enforce eager, CUDA graph mode if given, compiled) as the command line asks."""
    mode = _flag(argv, "-cc.cudagraph_mode") or _flag(argv, "--compilation-config.cudagraph_mode")
    compile_mode = _flag(argv, "-cc.mode") or _flag(argv, "--compilation-config.mode")
    eager = "--enforce-eager" in argv
    return eager, mode.upper() if mode else None, (compile_mode or "3").upper() in ("3", "VLLM_COMPILE")


def _gpu_log(record: RunRecord) -> bool:
    """The log has the GPU build's lines: a GPU was used, or the stand-in, which writes them too."""
    return record.gpu is not None or record.engine.kind == "stand-in"


def _length_range(mean: int | None, ratio: float | None) -> tuple[int, int] | None:
    """Lengths that the random data set draws (vLLM 0.23.0, benchmarks/datasets/utils.py): mean -/+ ratio."""
    if mean is None:
        return None
    share = ratio or 0.0
    return max(1, math.floor(mean * (1 - share))), math.ceil(mean * (1 + share))


def _span(low_high: tuple[int, int]) -> str:
    return str(low_high[0]) if low_high[0] == low_high[1] else f"{low_high[0]} to {low_high[1]}"


def _numbers(bench: BenchResult | None) -> list[tuple[str, float]]:
    return [(k, v) for k, v in bench.scalars.items() if isinstance(v, float)] if bench else []


# -- the load --


@_gate(
    "no_successful_requests",
    "invalid",
    "The client completed at least one request and got tokens for it.",
    "The client exits 0 even then: see bench.log and the end of server.log for why requests failed.",
)
def _no_success(e: Evidence) -> str | None:
    if not e.measured:
        return None
    if e.bench is None:
        return "no result file of the client"
    tokens = sum(r.output_tokens for r in e.bench.requests)
    if e.bench.completed and tokens:
        return None
    return f"completed {e.bench.completed}, failed {e.bench.failed}, output tokens {tokens}"


@_gate(
    "failed_requests",
    "invalid",
    "No request failed: refusing requests makes the rest faster.",
    "See the errors in requests.parquet and server.log; run the block again.",
)
def _failed(e: Evidence) -> str | None:
    if e.bench is None:
        return None
    errors = [r.error for r in e.bench.requests if r.error]
    if not e.bench.failed and not errors:
        return None
    text = errors[0].strip().splitlines() if errors else []
    first = f"; first error: {text[-1][:200]}" if text else ""
    return f"{max(e.bench.failed, len(errors))} of {len(e.bench.requests)} requests failed{first}"


@_gate(
    "request_count_mismatch",
    "invalid",
    "Completed plus failed requests, and rows, equal the prompts asked for.",
    "Requests got lost in the client: see bench.log; run the block again.",
)
def _count(e: Evidence) -> str | None:
    if e.bench is None:
        return None
    wanted = e.record.num_prompts if e.record.num_prompts is not None else e.bench.scalars["num_prompts"]
    done, rows = e.bench.completed + e.bench.failed, len(e.bench.requests)
    if done == wanted == rows:
        return None
    return f"{wanted} prompts, completed {e.bench.completed} + failed {e.bench.failed}, {rows} rows"


@_gate(
    "short_output",
    "invalid",
    "Every request got as many tokens as it asked for.",
    "A stream broke off or stopped early: check --ignore-eos, max_model_len and server.log.",
)
def _short(e: Evidence) -> str | None:
    if low_high := _length_range(e.record.output_tokens, e.record.range_ratio):
        wrong = [r for r in e.served if not low_high[0] <= r.output_tokens <= low_high[1]]
        if wrong:
            got, many = wrong[0].output_tokens, f"{len(wrong)} such requests"
            return f"request {wrong[0].request} got {got} tokens, asked for {_span(low_high)}; {many}"
    asked = e.counted("vllm:request_params_max_tokens_sum")
    got = e.counted("vllm:generation_tokens_total")
    if e.measured and asked is not None and got is not None and asked != got:
        return f"the engine was asked for {asked} tokens and generated {got}"
    return None


@_gate(
    "input_length_drift",
    "invalid",
    "Every prompt has the length asked for, as the engine counts it.",
    "The client's tokenizer does not fit the engine's: pass the same --tokenizer to both.",
)
def _input(e: Evidence) -> str | None:
    low_high = _length_range(e.record.input_tokens, e.record.range_ratio)
    if low_high is None:
        return None
    wrong = [r for r in e.served if not low_high[0] <= r.input_tokens <= low_high[1]]
    if not wrong:
        return None
    return (
        f"request {wrong[0].request} has {wrong[0].input_tokens} input tokens, asked for {_span(low_high)}; "
        f"{len(wrong)} such requests"
    )


@_gate(
    "zero_or_nonfinite_latency",
    "invalid",
    "Every request's times are finite and positive, inter-token times not negative.",
    "Empty or broken responses were counted as requests: see server.log; run the block again.",
)
def _latency(e: Evidence) -> str | None:
    for row in e.served:
        times = (row.start_s, row.ttft_s, row.latency_s)
        if not all(map(math.isfinite, times)) or row.ttft_s <= 0 or min(row.itl_us, default=0) < 0:
            return f"request {row.request}: start {row.start_s}, ttft {row.ttft_s}, latency {row.latency_s} s"
    bad = [k for k, v in _numbers(e.bench) if not math.isfinite(v)]
    return f"{', '.join(bad[:5])} not finite" if bad else None


@_gate(
    "token_sum_mismatch",
    "invalid",
    "The client's token totals equal the sums over its requests and what the engine counted.",
    "Client and engine saw different work: another client may use the server, or requests were cut.",
)
def _tokens(e: Evidence) -> str | None:
    if e.bench is None:
        return None
    for name, total in (
        ("total_output_tokens", sum(r.output_tokens for r in e.served)),
        ("total_input_tokens", sum(r.input_tokens for r in e.served)),
    ):
        said = e.bench.scalars.get(name)
        if said != total:
            return f"{name} {said}, sum over requests {total}"
    warmups = e.record.warmup_requests
    if e.bench.failed or warmups is None or not e.bench.requests:
        return None
    first = e.bench.requests[0]  # warm-ups repeat it
    for metric, own, warm in (
        ("vllm:generation_tokens_total", sum(r.output_tokens for r in e.served), first.output_tokens),
        ("vllm:prompt_tokens_total", sum(r.input_tokens for r in e.served), first.input_tokens),
    ):
        engine = e.counted(metric)
        if engine is not None and engine != own + warmups * warm:
            return f"{metric} grew by {engine}, the client saw {own} and {warmups} warm-ups of {warm}"
    return None


@_gate(
    "duration_mismatch",
    "invalid",
    "The client's duration is the time from its first request to its last token.",
    "The client stalled outside its requests: see the machine's load; run the block again.",
)
def _duration(e: Evidence) -> str | None:
    if e.bench is None or e.bench.window_s is None:
        return None
    window_s = e.bench.window_s[1] - e.bench.window_s[0]
    allowed_s = 0.1 + 0.01 * window_s
    if e.bench.duration_s > 0 and abs(e.bench.duration_s - window_s) <= allowed_s:
        return None
    return f"duration {e.bench.duration_s:.3f} s, first request to last token {window_s:.3f} s"


@_gate(
    "prefix_cache_hits",
    "invalid",
    "No prompt was served from the prefix cache.",
    "Start the server with --no-enable-prefix-caching.",
)
def _prefix(e: Evidence) -> str | None:
    hits = e.after.value("vllm:prefix_cache_hits_total") if e.after else None
    if not hits:
        return None
    queries = e.after.value("vllm:prefix_cache_queries_total") if e.after else None
    return f"{hits:.0f} of {queries or 0:.0f} prompt tokens came from the cache"


# -- the engine's own account --


@_gate(
    "metrics_missing",
    "invalid",
    "The engine's /metrics were read before and after the load.",
    "Without them neither preemptions nor cache hits are known: see run.json and server.log.",
)
def _metrics(e: Evidence) -> str | None:
    wanted = ("vllm:num_preemptions_total", "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total")
    scrapes = (("before", e.before), ("after", e.after))
    if not e.measured:  # a prime has no load: one scrape is enough
        scrapes = (("before", e.before or e.after),)
    for scrape, metrics in scrapes:
        if metrics is None:
            return f"no /metrics {scrape} the load"
        absent = [name for name in wanted if metrics.value(name) is None]
        if absent or metrics.num_gpu_blocks is None:
            return f"/metrics {scrape} the load lack {(absent or ['num_gpu_blocks'])[0]}"
    return None


@_gate(
    "step_trace_missing",
    "invalid",
    "The step trace exists and has steps.",
    "The engine did not load the plug-in: look for `stat_logger_plugins` in server.log.",
)
def _trace(e: Evidence) -> str | None:
    if not e.measured or (e.steps is not None and e.steps.rows):
        return None
    return "no step trace" if e.steps is None else "the step trace is empty"


@_gate(
    "step_trace_incomplete",
    "invalid",
    "The step trace ends with its end line, and no step was dropped or misread.",
    "The engine was killed, its disk was full or the plug-in fell behind: run the block again.",
)
def _trace_end(e: Evidence) -> str | None:
    if not e.measured or e.steps is None:
        return None
    if not e.steps.complete:
        return f"the trace was cut off after {len(e.steps.rows)} steps"
    if e.steps.dropped or e.steps.errors:
        return f"dropped {e.steps.dropped}, misread {e.steps.errors} of {len(e.steps.rows)} steps"
    return None


@_gate(
    "steps_disagree_with_metrics",
    "invalid",
    "The step trace's generated tokens and preemptions sum to the engine's counters.",
    "The trace misses steps or another server wrote to it: run the block again.",
)
def _trace_sums(e: Evidence) -> str | None:
    if e.steps is None or not e.steps.complete or e.after is None or not e.measured:
        return None
    for column, metric in (
        ("generated_tokens", "vllm:generation_tokens_total"),
        ("preempted", "vllm:num_preemptions_total"),
    ):
        engine = e.after.value(metric)
        traced = e.steps.total(column) or 0
        if engine is not None and engine != traced:
            return f"{column} in the trace {traced}, {metric} {engine:.0f}"
    return None


@_gate(
    "padding_not_reported",
    "warning",
    "With --cudagraph-metrics the step trace tells padded tokens.",
    "Model runner V2 does not report them: set VLLM_USE_V2_MODEL_RUNNER=0. Padding is not measured, not 0.",
)
def _padding(e: Evidence) -> str | None:
    if "--cudagraph-metrics" not in e.record.serve_argv or e.steps is None or not e.steps.rows:
        return None
    if any(row.unpadded_tokens is not None for row in e.steps.rows):
        return None
    return f"none of {len(e.steps.rows)} steps has a token count"


# -- the arm --


@_gate(
    "engine_version",
    "invalid",
    "The engine that ran is the one recorded.",
    "Another vLLM answered: check which Python starts the engine and its PYTHONPATH.",
)
def _version(e: Evidence) -> str | None:
    wanted, found = e.record.engine.version, e.log.vllm_version if e.log else None
    if wanted is None or found is None or wanted == found or found.startswith(f"{wanted}+"):
        return None
    return f"recorded {wanted}, the log says {found}"


@_gate(
    "log_format_unknown",
    "invalid",
    "The engine's log holds every line that a log of this arm must hold.",
    "This version writes another log: add its lines to analysis/formats/server_log.py.",
)
def _log(e: Evidence) -> str | None:
    if e.log is None:
        return "no server log"
    eager, mode, compiled = _asked(e.record.serve_argv)
    missing = missing_facts(
        e.log, graphs=not eager and mode != "NONE", compiled=not eager and compiled, gpu=_gpu_log(e.record)
    )
    return f"missing: {', '.join(missing)}" if missing else None


@_gate(
    "arm_not_confirmed",
    "invalid",
    "The engine's own account of its configuration is that of the arm.",
    "The flags did not take effect as written: compare serve_argv in run.json with server.log.",
)
def _arm(e: Evidence) -> str | None:
    if e.log is None:
        return None
    argv = e.record.serve_argv
    eager, mode, _ = _asked(argv)
    if e.log.enforce_eager is not None and e.log.enforce_eager != eager:
        return f"enforce_eager is {e.log.enforce_eager}, asked for {eager}"
    if mode is not None and not eager and e.log.cudagraph_mode not in (None, mode):
        return f"cudagraph_mode is {e.log.cudagraph_mode}, asked for {mode}"
    blocks = _flag(argv, "--num-gpu-blocks-override")
    if blocks is not None and str(e.log.num_gpu_blocks_override) != blocks:
        return f"num_gpu_blocks_override is {e.log.num_gpu_blocks_override}, asked for {blocks}"
    if blocks is None and e.log.num_gpu_blocks_override is not None:
        return f"num_gpu_blocks_override is {e.log.num_gpu_blocks_override}, not asked for"
    in_effect = next((m.num_gpu_blocks for m in (e.after, e.before) if m is not None), None)
    if blocks is not None and in_effect is not None and str(in_effect) != blocks:
        return f"{in_effect} KV blocks in effect, asked for {blocks}"
    return _arm_graphs(e, eager or mode == "NONE")


def _arm_graphs(e: Evidence, without: bool) -> str | None:
    assert e.log is not None
    captured = (e.log.graphs_captured_piecewise or 0) + (e.log.graphs_captured_full or 0)
    modes = {row.runtime_mode for row in e.steps.rows} if e.steps else set()
    if without:
        if captured or e.log.capture_s is not None or modes & {"FULL", "PIECEWISE"}:
            return f"{captured} CUDA graphs captured, none asked for"
        return None
    if not _gpu_log(e.record):
        return None
    if e.log.cudagraph_mode == "NONE":
        return "cudagraph_mode is NONE, graphs asked for"
    if modes - {None} and not modes & {"FULL", "PIECEWISE"}:
        return "no step ran a CUDA graph"
    largest = _flag(e.record.serve_argv, "--max-cudagraph-capture-size")
    if largest is not None and e.log.capture_sizes and str(max(e.log.capture_sizes)) != largest:
        return f"largest capture size is {max(e.log.capture_sizes)}, asked for {largest}"
    return None


@_gate(
    "jit_in_window",
    "warning",
    "No kernel was compiled while requests were measured.",
    "A compilation stalls all requests: send more warm-up requests.",
)
def _jit(e: Evidence) -> str | None:
    t = e.record.timeline
    if e.log is None or t.healthy_ns is None or t.window_begin_ns is None:
        return None
    begin_s = (t.window_begin_ns - t.healthy_ns) / 1e9
    end_s = ((t.window_end_ns or t.window_begin_ns) - t.healthy_ns) / 1e9
    late = [
        j for j in e.log.jit_events if j.after_ready_s is not None and begin_s <= j.after_ready_s <= end_s + 1
    ]
    if not late:
        return None
    return f"{len(late)} compilations, first {late[0].kernel} about {late[0].after_ready_s} s after the start"


GATES: tuple[Gate, ...] = tuple(_GATES)


def judge(evidence: Evidence) -> tuple[Reason, ...]:
    """All gates that fire, in the order of GATES."""
    reasons = []
    for gate in GATES:
        if (seen := gate.check(evidence)) is not None:
            reasons.append(Reason(code=gate.code, severity=gate.severity, evidence=seen, advice=gate.advice))
    return tuple(reasons)
