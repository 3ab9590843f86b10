"""run.json: the record of one run or prime, as the runner writes it and the analysis reads it.

Immutable and checked on construction. Times are CLOCK_MONOTONIC nanoseconds of the machine that ran it;
only `wall_start` is calendar time (UTC, ISO 8601). A figure that was not measured is None, never 0.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1  # 1: first format


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Reason(Frozen):
    """Why a run is not (fully) trusted: a gate that fired."""

    code: str
    severity: Literal["invalid", "warning"]
    evidence: str
    advice: str


class GpuIdentity(Frozen):
    index: int
    uuid: str
    name: str
    memory_total_mib: int


class EngineIdentity(Frozen):
    kind: Literal["vllm", "stand-in"]
    version: str | None = None
    simulated: bool


class TraceEnd(Frozen):
    """How the step trace ended: its end line was found; steps lost and not understood, None without it."""

    complete: bool
    dropped: int | None
    errors: int | None


class Timeline(Frozen):
    """Moments of a run, CLOCK_MONOTONIC ns; None where the run did not come that far."""

    run_begin_ns: int
    exec_ns: int | None = None  # engine process started
    healthy_ns: int | None = None  # first 200 of /health
    probe_sent_ns: int | None = None
    probe_first_token_ns: int | None = None
    probe_end_ns: int | None = None
    bench_ready_ns: int | None = None  # the held-back client waits for the go
    go_ns: int | None = None
    window_begin_ns: int | None = None  # first measured request sent (from the client's own clock)
    window_end_ns: int | None = None  # last token received
    bench_exit_ns: int | None = None
    stop_ns: int | None = None  # SIGTERM sent
    exited_ns: int | None = None
    memory_freed_ns: int | None = None
    run_end_ns: int | None = None  # files complete, before the rename


class ContainerFacts(Frozen):
    """The container of a server: the image asked for and the one it was, and how it ended."""

    id: str
    image: str
    image_id: str
    image_digests: tuple[str, ...]  # of registries; empty for an image built or loaded here
    exit_code: int | None
    oom_killed: bool | None


class RunIdentity(Frozen):
    """What is known of a run or prime before it starts."""

    schema_version: Literal[1] = 1
    kind: Literal["run", "prime"]
    run_id: str  # model.arm.profile.rN (a prime: model.arm.prime)
    folder: str  # run_id.pPaA
    campaign: str
    model: str
    arm: str
    profile: str | None = None  # None for a prime
    repetition: int | None = None  # from 1; None for a prime
    block_id: str | None = None  # model.profile.rN; None for a prime
    pass_number: int = Field(ge=1)  # a block run whole again: on another machine, or with more arms
    attempt: int = Field(ge=1)
    order_in_block: int | None = None  # from 0
    block_arms: tuple[str, ...] = ()  # the block's arms in the order run
    seed: int | None = None  # of the bench prompts; equal for every arm of a block
    sitting_id: str
    machine_id: str  # boot id: monotonic times compare only within it
    cache_id: str | None = None  # identity of the compile-cache folder; a new one means a new prime


class RunRecord(RunIdentity):
    gpu: GpuIdentity | None  # None: no GPU (stand-in or CPU engine)
    engine: EngineIdentity
    container: ContainerFacts | None = None  # None: launched as a process
    weights: Literal["hub", "dummy"]
    instruments: bool = True  # False: deliberately without step trace and telemetry
    wall_start: str
    status: Literal["valid", "invalid", "failed"]
    failure_class: str | None = None
    failure_message: str | None = None
    reasons: tuple[Reason, ...] = ()
    timeline: Timeline
    serve_argv: tuple[str, ...] = ()
    bench_argv: tuple[str, ...] = ()
    engine_environment: dict[str, str] = Field(default_factory=dict)  # variables set by the campaign
    num_prompts: int | None = None
    concurrency: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    range_ratio: float | None = None
    warmup_requests: int | None = None
    probe_output_tokens: int | None = None
    num_gpu_blocks: int | None = None  # in effect (from /metrics cache_config_info)
    num_gpu_blocks_natural: int | None = None  # what profiling found before any override
    server_log: dict[str, Any] = Field(default_factory=dict)  # analysis.formats.server_log.ServerLog as a dict
    idle_gpu_memory_mib: int | None = None  # before the start
    gpu_processes_before: tuple[int, ...] | None = None  # compute processes before the start; none of them is ours
    gpu_processes_in_window: tuple[int, ...] | None = None  # that are not ours, looked for every second
    cpu_busy_pct: float | None = None  # of the CPUs given to engine and client (all of the machine's, if none were)
    cpu_stolen_pct: float | None = None  # from them by the virtual machine's host; both from go to the client's end
    step_trace_end: TraceEnd | None = None
    telemetry_absent_reason: str | None = None  # why telemetry.parquet is missing, if it is
    files_sha256: dict[str, str] = Field(default_factory=dict)


def parse_run_record(data: bytes, folder: str) -> RunRecord:
    """The content of `folder`'s run.json. Raises ValueError: what is wrong with it, or that it is another folder's."""
    record = RunRecord.model_validate_json(data)
    if record.folder != folder:
        raise ValueError(f"run.json says folder {record.folder!r}")
    return record
