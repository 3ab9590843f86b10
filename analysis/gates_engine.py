"""Gates on the engine's own account: metrics, step trace, and whether the arm ran as asked."""

from __future__ import annotations

import json
from itertools import takewhile

from analysis.formats.run_record import RunRecord
from analysis.formats.server_log import missing_facts
from analysis.gate import Evidence, Gate


def _metrics(e: Evidence) -> str | None:
    wanted = ("vllm:num_preemptions_total", "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total")
    before = e.before if e.measured else e.before or e.after  # a prime has no load: one scrape is enough
    for scrape, metrics in (("before", before), ("after", e.after if e.measured else before)):
        if metrics is None:
            return f"no /metrics {scrape} the load"
        absent = [name for name in wanted if metrics.value(name) is None]
        if absent or metrics.num_gpu_blocks is None:
            return f"/metrics {scrape} the load lack {(absent or ['num_gpu_blocks'])[0]}"
    return None


def _trace(e: Evidence) -> str | None:
    if not e.measured or (e.steps is not None and e.steps.rows):
        return None
    return "no step trace" if e.steps is None else "the step trace is empty"


def _trace_end(e: Evidence) -> str | None:
    if not e.measured or e.steps is None:
        return None
    if not e.steps.complete:
        return f"the trace was cut off after {len(e.steps.rows)} steps"
    if e.steps.dropped or e.steps.errors:
        return f"dropped {e.steps.dropped}, misread {e.steps.errors} of {len(e.steps.rows)} steps"
    return None


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


def _padding(e: Evidence) -> str | None:
    if "--cudagraph-metrics" not in e.record.serve_argv or e.steps is None or not e.steps.rows:
        return None
    if any(row.unpadded_tokens is not None for row in e.steps.rows):
        return None
    return f"none of {len(e.steps.rows)} steps has a token count"


def _version(e: Evidence) -> str | None:
    wanted, found = e.record.engine.version, e.log.vllm_version if e.log else None
    if wanted is None or found is None or wanted == found or found.startswith(f"{wanted}+"):
        return None
    return f"recorded {wanted}, the log says {found}"


def _simulated(e: Evidence) -> str | None:
    if e.log is None or e.log.simulated == e.record.engine.simulated:
        return None
    return f"the log's engine is {'the stand-in' if e.log.simulated else 'not the stand-in'}"


def _log(e: Evidence) -> str | None:
    if e.log is None:
        return "no server log"
    eager, mode, compiled = _asked(e.record.serve_argv)
    missing = missing_facts(
        e.log, graphs=not eager and mode != "NONE", compiled=not eager and compiled, gpu=_gpu_log(e.record)
    )
    return f"missing: {', '.join(missing)}" if missing else None


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
    sizes = e.log.capture_sizes
    largest = _flag(e.record.serve_argv, "--max-cudagraph-capture-size")
    if largest is not None and sizes and str(sizes[-1]) != largest:
        return f"largest capture size is {sizes[-1]}, asked for {largest} (the engine cuts to a default size)"
    wanted = _flag_list(e.record.serve_argv, "--cudagraph-capture-sizes")
    if wanted and sizes and set(wanted) != {str(size) for size in sizes}:
        return f"capture sizes are {sizes[0]} to {sizes[-1]} ({len(sizes)}), asked for {len(wanted)} others"
    return None


def _errors(e: Evidence) -> str | None:
    if e.log is None or not e.log.error_lines:
        return None
    return f"{len(e.log.error_lines)} error lines, first: {e.log.error_lines[0][:300]}"


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


def _flag(argv: tuple[str, ...], name: str) -> str | None:
    """Value of the last `name VALUE` or `name=VALUE`; None if absent."""
    value = None
    for i, arg in enumerate(argv):
        if arg.startswith(f"{name}="):
            value = arg[len(name) + 1 :]
        elif arg == name and i + 1 < len(argv):
            value = argv[i + 1]
    return value


def _flag_list(argv: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Values of `name V1 V2 ...`; empty if absent."""
    if name not in argv:
        return ()
    return tuple(takewhile(lambda arg: not arg.startswith("-"), argv[argv.index(name) + 1 :]))


def _compilation(argv: tuple[str, ...], key: str) -> str | None:
    """A key of the compilation configuration, dotted or in its JSON form, in capitals; None if not given."""
    for flag in ("-cc", "--compilation-config"):
        if (value := _flag(argv, f"{flag}.{key}")) is not None:
            return value.upper()
        try:
            whole = json.loads(_flag(argv, flag) or "{}")
        except ValueError:
            continue
        if isinstance(whole, dict) and whole.get(key) is not None:
            return str(whole[key]).upper()
    return None


def _asked(argv: tuple[str, ...]) -> tuple[bool, str | None, bool]:
    """(enforce eager, CUDA graph mode if given, compiled) as the command line asks."""
    compiled = _compilation(argv, "mode") in (None, "3", "VLLM_COMPILE")
    return "--enforce-eager" in argv, _compilation(argv, "cudagraph_mode"), compiled


def _gpu_log(record: RunRecord) -> bool:
    """The log has the GPU build's lines: a GPU was used, or the stand-in, which writes them too."""
    return record.gpu is not None or record.engine.kind == "stand-in"


GATES = (
    Gate(
        "metrics_missing",
        "invalid",
        "The engine's /metrics were read before and after the load.",
        "Without them neither preemptions nor cache hits are known: see run.json and server.log.",
        _metrics,
    ),
    Gate(
        "step_trace_missing",
        "invalid",
        "The step trace exists and has steps.",
        "The engine did not load the plug-in: look for `stat_logger_plugins` in server.log.",
        _trace,
    ),
    Gate(
        "step_trace_incomplete",
        "invalid",
        "The step trace ends with its end line, and no step was dropped or misread.",
        "The engine was killed, its disk was full or the plug-in fell behind: run the block again.",
        _trace_end,
    ),
    Gate(
        "steps_disagree_with_metrics",
        "invalid",
        "The step trace's generated tokens and preemptions sum to the engine's counters.",
        "The trace misses steps or another server wrote to it: run the block again.",
        _trace_sums,
    ),
    Gate(
        "padding_not_reported",
        "warning",
        "With --cudagraph-metrics the step trace tells padded tokens.",
        "Model runner V2 does not report them: set VLLM_USE_V2_MODEL_RUNNER=0. Padding is unknown, not 0.",
        _padding,
    ),
    Gate(
        "engine_version",
        "invalid",
        "The engine that ran is the one recorded.",
        "Another vLLM answered: check which Python starts the engine and its PYTHONPATH.",
        _version,
    ),
    Gate(
        "simulated_engine",
        "invalid",
        "A run is recorded as simulated if and only if the stand-in engine ran.",
        "Figures of the stand-in say nothing about a GPU: check which engine the server command starts.",
        _simulated,
    ),
    Gate(
        "log_format_unknown",
        "invalid",
        "The engine's log holds every line that a log of this arm must hold.",
        "This version writes another log: add its lines to analysis/formats/server_log.py.",
        _log,
    ),
    Gate(
        "arm_not_confirmed",
        "invalid",
        "The engine's own account of its configuration is that of the arm.",
        "The flags did not take effect as written: compare serve_argv in run.json with server.log.",
        _arm,
    ),
    Gate(
        "jit_in_window",
        "warning",
        "No kernel was compiled while requests were measured.",
        "A compilation stalls all requests: send more warm-up requests.",
        _jit,
    ),
    Gate(
        "engine_errors",
        "warning",
        "The engine logged no error before it was told to stop.",
        "Requests may have been disturbed: read server.log at this line.",
        _errors,
    ),
)
