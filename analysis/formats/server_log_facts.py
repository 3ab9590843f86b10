"""What the engine's log says, as data; server_log.py reads it.

A fact whose line is absent is None (or an empty tuple). `missing_facts` asks for the lines that a log of its
kind must have, so that a renamed line is an error and never a silent gap.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from analysis.formats.errors import FormatError

CompileCache = Literal["warm", "cold", "partial", "invalid", "none"]


@dataclass(frozen=True, slots=True)
class PaddingRow:
    """Steps that ran with these scheduled and padded token counts, summed over all tables of a log."""

    unpadded: int
    padded: int
    paddings: int
    mode: str
    count: int


@dataclass(frozen=True, slots=True)
class JitEvent:
    """A Triton kernel compiled while serving. `after_ready_s`: log time since the server's start line, whole
    seconds (both lines are cut to the second); None without that line."""

    kernel: str
    after_ready_s: int | None


@dataclass(frozen=True)
class ServerLog:
    """What a log says. Durations in s, memory in GiB, as printed (`capture_s`: whole seconds)."""

    vllm_version: str | None = None
    architecture: str | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool | None = None
    prefix_caching: bool | None = None
    cudagraph_mode: str | None = None  # name, e.g. FULL_AND_PIECEWISE
    compile_mode: str | None = None  # name, e.g. VLLM_COMPILE
    capture_sizes: tuple[int, ...] = ()
    attention_backend: str | None = None
    weights_load_s: float | None = None  # absent with dummy weights
    model_load_s: float | None = None
    model_load_gib: float | None = None
    compile_cache: CompileCache | None = None
    dynamo_s: float | None = None  # with a warm cache: loading time
    inductor_s: float | None = None  # cold cache only
    torch_compile_s: float | None = None
    profiling_s: float | None = None
    estimated_graph_gib: float | None = None  # may be negative
    available_kv_gib: float | None = None
    num_gpu_blocks_natural: int | None = None  # only printed when overridden
    num_gpu_blocks_override: int | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    capture_s: int | None = None
    capture_gib: float | None = None
    graph_pool_actual_gib: float | None = None
    graphs_captured_piecewise: int | None = None
    graphs_captured_full: int | None = None
    engine_init_s: float | None = None
    engine_init_compile_s: float | None = None
    jit_compilations: int = 0
    jit_events: tuple[JitEvent, ...] = ()
    simulated: bool = False  # the stand-in engine says so
    application_started: bool = False
    shutdown_requested: bool = False
    last_line: str = ""
    error_lines: tuple[str, ...] = ()  # root causes, in order
    padding_rows: tuple[PaddingRow, ...] = ()

    @property
    def phase(self) -> str:
        """How far it came: starting, loading, compiling, profiling, capturing, finishing or serving."""
        if self.application_started:
            return "serving"
        if self.engine_init_s is not None:
            return "finishing"
        if self.kv_tokens is not None:
            return "capturing" if _has_graphs(self) else "finishing"
        if self.torch_compile_s is not None or self.estimated_graph_gib is not None:
            return "profiling"
        if self.model_load_s is not None:
            return "compiling" if self.compile_mode not in (None, "NONE") else "profiling"
        return "loading" if self.enforce_eager is not None else "starting"

    def to_dict(self) -> dict[str, Any]:
        """As plain lists, dicts, strings and numbers, for JSON."""
        facts = asdict(self)
        for name in ("capture_sizes", "error_lines", "jit_events", "padding_rows"):
            facts[name] = list(facts[name])
        return facts

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> ServerLog:
        """Inverse of `to_dict`; absent keys take their default. Raises FormatError on an unknown key."""
        unknown = sorted(set(facts) - {f.name for f in fields(cls)})
        if unknown:
            raise FormatError(f"server log facts: unknown key {unknown[0]!r}; written by a newer version?")
        try:
            tuples: dict[str, Any] = {
                "capture_sizes": tuple(facts.get("capture_sizes", ())),
                "error_lines": tuple(facts.get("error_lines", ())),
                "jit_events": tuple(JitEvent(**e) for e in facts.get("jit_events", ())),
                "padding_rows": tuple(PaddingRow(**r) for r in facts.get("padding_rows", ())),
            }
        except TypeError as error:
            raise FormatError(f"server log facts: {error}") from None
        return cls(**{**facts, **tuples})


def _has_graphs(log: ServerLog) -> bool:
    return log.cudagraph_mode not in (None, "NONE") and log.enforce_eager is not True


_ALWAYS = (
    "vllm_version",
    "architecture",
    "max_model_len",
    "enforce_eager",
    "cudagraph_mode",
    "compile_mode",
    "attention_backend",
    "kv_tokens",
    "max_concurrency",
    "engine_init_s",
)
_ON_GPU = ("max_num_batched_tokens", "model_load_s", "available_kv_gib")
_COMPILED_FACTS = ("dynamo_s", "torch_compile_s", "profiling_s", "compile_cache", "engine_init_compile_s")
_WITH_GRAPHS = ("estimated_graph_gib", "capture_s", "capture_gib", "graph_pool_actual_gib")


def missing_facts(log: ServerLog, *, graphs: bool, compiled: bool, gpu: bool) -> tuple[str, ...]:
    """Facts that the log of a started server must hold and does not, in the order of its lines.

    `graphs`, `compiled`: the arm captures CUDA graphs, uses torch.compile; `gpu`: False for the CPU build,
    which prints nothing of model loading, KV memory, compile totals and capture.
    """
    wanted: tuple[str, ...] = _ALWAYS
    if gpu:
        wanted += _ON_GPU + (_COMPILED_FACTS if compiled else ()) + (_WITH_GRAPHS if graphs else ())
    missing = [name for name in wanted if getattr(log, name) is None]
    if gpu and graphs and not log.capture_sizes:
        missing.append("capture_sizes")
    if not log.application_started:
        missing.append("application_started")
    return tuple(missing)
