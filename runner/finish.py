"""From the raw output of a run to its finished folder: parse, compress, Parquet, judge, run.json."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from analysis.formats.bench import BenchResult, parse_bench
from analysis.formats.errors import FormatError
from analysis.formats.metrics import Metrics, parse_metrics
from analysis.formats.run_record import EngineIdentity, RunRecord, Timeline, TraceEnd
from analysis.formats.server_log import ServerLog, parse_server_log
from analysis.formats.steps import HEADER, StepTrace, parse_steps
from analysis.validate import judge_run
from runner.context import Measured, RunContext
from runner.errors import EngineFailed
from runner.files import csv_to_parquet, sha256, without_request_lines, write_gz, write_requests
from runner.store import write_atomic
from runner.telemetry import Telemetry

T = TypeVar("T")


@dataclass
class Parsed:
    """What the files say; None: absent. `problem` is the first that could not be read."""

    log: ServerLog | None = None
    bench: BenchResult | None = None
    before: Metrics | None = None
    after: Metrics | None = None
    steps: StepTrace | None = None
    problem: EngineFailed | None = None

    def read(self, name: str, parse: Callable[[], T]) -> T | None:
        try:
            return parse()
        except FormatError as error:
            hint = "the raw file is kept in the run's folder"
            self.problem = self.problem or EngineFailed(f"{name}: {error}", "output_unreadable", hint)
            return None


def collect(ctx: RunContext, measured: Measured) -> Parsed:
    """Parse the run's raw files and replace them by the result files (but telemetry, which still runs)."""
    folder, parsed = ctx.directory, Parsed()
    server_log, bench_log = folder / "server.log", folder / "bench.log"
    bench, steps = folder / "bench.raw.json", folder / "steps.csv"
    if server_log.exists():
        log = without_request_lines(server_log.read_bytes())
        parsed.log = parse_server_log(log.decode(errors="replace"))
        write_gz(folder / "server.log.gz", log)
        server_log.unlink()
    if bench_log.exists():
        write_gz(folder / "bench.log.gz", bench_log.read_bytes())
        bench_log.unlink()
    for when, text in measured.metrics.items():
        write_gz(folder / f"metrics_{when}.txt.gz", text)
        setattr(parsed, when, parsed.read(f"/metrics {when}", partial(parse_metrics, text.decode(errors="replace"))))
    if bench.exists():
        parsed.bench = parsed.read("the client's result", lambda: parse_bench(bench.read_bytes()))
    if parsed.bench is not None:
        (folder / "bench.json").write_text(json.dumps(parsed.bench.scalars, indent=1) + "\n", encoding="utf-8")
        write_requests(parsed.bench.requests, folder / "requests.parquet")
        bench.unlink()
    if steps.exists():
        parsed.steps = parsed.read("steps.csv", lambda: parse_steps(steps.read_text(errors="replace")))
    if parsed.steps is not None:
        write_steps(parsed.steps, steps)
    return parsed


def write_steps(trace: StepTrace, source: Path) -> None:
    """steps.parquet in place of the plug-in's file; of a trace that was cut off, its whole lines."""
    if not trace.complete:
        text = source.read_text(errors="replace")
        source.write_text("\n".join([HEADER, *text.split("\n")[1 : len(trace.rows) + 1], ""]))
    csv_to_parquet(source, source.with_name("steps.parquet"))
    source.unlink()


def complete(
    ctx: RunContext, measured: Measured, parsed: Parsed, failure: EngineFailed | None, telemetry: Telemetry | None
) -> RunRecord:
    """Telemetry, verdict and run.json; the folder is then whole."""
    samples, target = ctx.directory / "telemetry.csv", ctx.directory / "telemetry.parquet"
    if samples.exists():
        parsed.read(samples.name, lambda: csv_to_parquet(samples, target))
    if target.exists():
        samples.unlink()
    ended = telemetry.reason if telemetry else None
    absent = None
    if ctx.gpu is None:
        absent = "the stand-in engine uses no GPU" if ctx.host.kind == "stand-in" else "run without a GPU (--no-gpu)"
    elif not ctx.instruments:
        absent = "the arm runs without instruments"
    elif not target.exists():
        absent = ended or "not started, or unreadable"
    failure = failure or parsed.problem
    if failure is None and ended is not None:
        failure = EngineFailed(f"telemetry ended early: {ended}", "telemetry_lost")
    record = _record(ctx, measured, parsed, absent, telemetry)
    if failure is not None:
        message = f"{failure.message} (next: {failure.hint})" if failure.hint else failure.message
        changes: dict[str, Any] = {"status": "failed", "failure_class": failure.failure_class}
        changes["failure_message"] = message
    else:
        verdict = judge_run(ctx.directory, record)
        changes = {"status": verdict.status, "reasons": verdict.reasons}
    measured.mark("run_end_ns")
    changes["timeline"] = record.timeline.model_copy(update={"run_end_ns": measured.moments["run_end_ns"]})
    record = record.model_copy(update=changes)
    write_atomic(ctx.directory / "run.json", record.model_dump_json(indent=1) + "\n")
    return record


def _record(
    ctx: RunContext, measured: Measured, parsed: Parsed, absent: str | None, telemetry: Telemetry | None
) -> RunRecord:
    """The record as far as it goes without the verdict."""
    engine, log, profile, trace, kind = ctx.config.engine, parsed.log, ctx.profile, parsed.steps, ctx.host.kind
    moments, foreign = dict(measured.moments), None
    if parsed.bench is not None and parsed.bench.window_s is not None:
        begin_s, end_s = parsed.bench.window_s
        moments |= {"window_begin_ns": round(begin_s * 1e9), "window_end_ns": round(end_s * 1e9)}
        window = (moments[name] for name in ("healthy_ns", "window_begin_ns", "window_end_ns"))
        foreign = telemetry.foreign(measured.own_processes, *window) if telemetry else None
    blocks = next((m.num_gpu_blocks for m in (parsed.after, parsed.before) if m is not None), None)
    overridden = log is not None and log.num_gpu_blocks_override is not None
    load: dict[str, Any] = {}
    if profile is not None:
        load = profile.model_dump(include={"concurrency", "input_tokens", "output_tokens", "range_ratio"})
        load |= {"num_prompts": profile.prompts, "warmup_requests": engine.warmup_requests}
    known = {name: value for name, value in vars(measured).items() if name in RunRecord.model_fields}
    return RunRecord(
        **ctx.identity.model_dump(),
        **load,
        **known,
        gpu=ctx.gpu.identity() if ctx.gpu else None,
        engine=EngineIdentity(kind=kind, version=measured.engine_version, simulated=kind == "stand-in"),
        weights=ctx.model.weights,
        instruments=ctx.instruments,
        status="valid",
        timeline=Timeline(**moments),
        probe_output_tokens=engine.probe.output_tokens,
        num_gpu_blocks=blocks,
        num_gpu_blocks_natural=log.num_gpu_blocks_natural if log is not None and overridden else blocks,
        server_log=log.to_dict() if log is not None else {},
        gpu_processes_in_window=foreign,
        step_trace_end=TraceEnd(complete=trace.complete, dropped=trace.dropped, errors=trace.errors) if trace else None,
        telemetry_absent_reason=absent,
        files_sha256={path.name: sha256(path) for path in sorted(ctx.directory.iterdir()) if path.is_file()},
    )
