"""From the raw output of a run to its finished folder: parse, compress, Parquet, judge, run.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from analysis.formats.bench import BenchResult, parse_bench
from analysis.formats.errors import FormatError
from analysis.formats.metrics import Metrics, parse_metrics
from analysis.formats.run_record import EngineIdentity, RunRecord, Timeline
from analysis.formats.server_log import ServerLog, parse_server_log
from analysis.formats.steps import StepTrace, parse_steps
from analysis.gates import Evidence, judge
from runner.context import Measured, RunContext
from runner.errors import EngineFailed
from runner.files import STEPS, TELEMETRY, csv_to_parquet, sha256, without_request_lines, write_gz, write_requests
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
            self.problem = self.problem or EngineFailed(
                f"{name}: {error}", "output_unreadable", "the raw file is kept in the run's folder"
            )
            return None


def collect(ctx: RunContext, measured: Measured) -> Parsed:
    """Parse the run's raw files and replace them by the result files (but telemetry, which still runs)."""
    parsed = Parsed()
    if ctx.server_log.exists():
        log = without_request_lines(ctx.server_log.read_bytes())
        parsed.log = parse_server_log(log.decode(errors="replace"))
        write_gz(ctx.directory / "server.log.gz", log)
        ctx.server_log.unlink()
    if ctx.bench_log.exists():
        write_gz(ctx.directory / "bench.log.gz", ctx.bench_log.read_bytes())
        ctx.bench_log.unlink()
    for when, text in measured.metrics.items():
        write_gz(ctx.directory / f"metrics_{when}.txt.gz", text)
        metrics = parsed.read(f"/metrics {when}", partial(parse_metrics, text.decode(errors="replace")))
        setattr(parsed, when, metrics)
    if ctx.bench_result.exists():
        parsed.bench = parsed.read("the client's result", lambda: parse_bench(ctx.bench_result.read_bytes()))
    if parsed.bench is not None:
        scalars = json.dumps(parsed.bench.scalars, indent=1) + "\n"
        (ctx.directory / "bench.json").write_text(scalars, encoding="utf-8")
        write_requests(parsed.bench.requests, ctx.directory / "requests.parquet")
        ctx.bench_result.unlink()
    if ctx.steps_csv.exists():
        parsed.steps = parsed.read("steps.csv", lambda: parse_steps(ctx.steps_csv.read_text(errors="replace")))
    if parsed.steps is not None:
        write_steps(parsed.steps, ctx)
    return parsed


def write_steps(trace: StepTrace, ctx: RunContext) -> None:
    """steps.parquet from the plug-in's file; of a trace that was cut off, its whole lines."""
    if not trace.complete:
        text = ctx.steps_csv.read_text(errors="replace")
        ctx.steps_csv.write_text("\n".join(text.split("\n")[: len(trace.rows) + 1]) + "\n")
    csv_to_parquet(ctx.steps_csv, ctx.directory / "steps.parquet", STEPS, numbered="step")
    ctx.steps_csv.unlink()


def complete(
    ctx: RunContext, measured: Measured, parsed: Parsed, failure: EngineFailed | None, telemetry: Telemetry | None
) -> RunRecord:
    """Telemetry, verdict and run.json; the folder is then whole."""
    if ctx.telemetry_csv.exists():
        parsed.read(
            "telemetry.csv", lambda: csv_to_parquet(ctx.telemetry_csv, ctx.directory / "telemetry.parquet", TELEMETRY)
        )
        ctx.telemetry_csv.unlink()
    absent = _telemetry_absent(ctx, telemetry)
    moments = dict(measured.moments)
    if parsed.bench is not None and parsed.bench.window_s is not None:
        begin_s, end_s = parsed.bench.window_s
        moments |= {"window_begin_ns": round(begin_s * 1e9), "window_end_ns": round(end_s * 1e9)}
    files = {path.name: sha256(path) for path in sorted(ctx.directory.iterdir()) if path.is_file()}
    record = _record(ctx, measured, parsed, moments, files, absent)
    failure = failure or parsed.problem or _telemetry_lost(telemetry)
    if failure is not None:
        message = f"{failure.message} (next: {failure.hint})" if failure.hint else failure.message
        changes: dict[str, Any] = {
            "status": "failed",
            "failure_class": failure.failure_class,
            "failure_message": message,
        }
    else:
        reasons = judge(Evidence(record, parsed.log, parsed.bench, parsed.before, parsed.after, parsed.steps))
        invalid = any(reason.severity == "invalid" for reason in reasons)
        changes = {"status": "invalid" if invalid else "valid", "reasons": reasons}
    measured.mark("run_end_ns")
    changes["timeline"] = record.timeline.model_copy(update={"run_end_ns": measured.moments["run_end_ns"]})
    record = record.model_copy(update=changes)
    write_atomic(ctx.directory / "run.json", record.model_dump_json(indent=1) + "\n")
    return record


def _telemetry_lost(telemetry: Telemetry | None) -> EngineFailed | None:
    if telemetry is None or telemetry.reason is None:
        return None
    return EngineFailed(f"telemetry ended early: {telemetry.reason}", "telemetry_lost", "see `nvidia-smi`")


def _telemetry_absent(ctx: RunContext, telemetry: Telemetry | None) -> str | None:
    if (ctx.directory / "telemetry.parquet").exists():
        return None
    if ctx.gpu is None:
        return "the stand-in engine uses no GPU" if ctx.host.kind == "stand-in" else "run without a GPU (--no-gpu)"
    return (telemetry.reason if telemetry else None) or "not started, or unreadable"


def _record(
    ctx: RunContext,
    measured: Measured,
    parsed: Parsed,
    moments: dict[str, int],
    files: dict[str, str],
    absent: str | None,
) -> RunRecord:
    engine, log = ctx.config.engine, parsed.log
    profile = ctx.config.profiles[ctx.profile] if ctx.profile is not None else None
    blocks = next((m.num_gpu_blocks for m in (parsed.after, parsed.before) if m is not None), None)
    overridden = log is not None and log.num_gpu_blocks_override is not None
    return RunRecord(
        kind=ctx.kind,
        run_id=ctx.run_id,
        folder=ctx.folder,
        campaign=ctx.campaign,
        model=ctx.model,
        arm=ctx.arm,
        profile=ctx.profile,
        repetition=ctx.repetition,
        block_id=ctx.block_id,
        pass_number=ctx.pass_number,
        attempt=ctx.attempt,
        order_in_block=ctx.order_in_block,
        block_arms=ctx.block_arms,
        seed=ctx.seed,
        sitting_id=ctx.sitting_id,
        machine_id=ctx.machine_id,
        cache_id=ctx.cache_id,
        gpu=ctx.gpu.identity() if ctx.gpu else None,
        engine=EngineIdentity(
            kind=ctx.host.kind, version=measured.engine_version, simulated=ctx.host.kind == "stand-in"
        ),
        weights=ctx.config.models[ctx.model].weights,
        wall_start=measured.wall_start,
        status="valid",
        timeline=Timeline(**moments),
        serve_argv=measured.serve_argv,
        bench_argv=measured.bench_argv,
        engine_environment=measured.environment,
        num_prompts=profile.prompts if profile else None,
        concurrency=profile.concurrency if profile else None,
        input_tokens=profile.input_tokens if profile else None,
        output_tokens=profile.output_tokens if profile else None,
        range_ratio=profile.range_ratio if profile else None,
        warmup_requests=engine.warmup_requests if profile else None,
        probe_output_tokens=engine.probe.output_tokens,
        num_gpu_blocks=blocks,
        num_gpu_blocks_natural=log.num_gpu_blocks_natural if log is not None and overridden else blocks,
        server_log=log.to_dict() if log is not None else {},
        idle_gpu_memory_mib=measured.idle_memory_mib,
        telemetry_absent_reason=absent,
        files_sha256=files,
    )
