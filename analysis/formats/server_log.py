"""Facts in the engine's log (stdout and stderr together), as vLLM 0.23.0 and its CPU build write it.

A fact whose line is absent is None (or an empty tuple). `missing_facts` asks for the lines that a log of its
kind must have, so that a renamed line is an error and never a silent gap.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Literal

from analysis.formats.errors import FormatError
from analysis.formats.failure import SHUTDOWN, root_causes

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


_PREFIX = re.compile(r"^\((?P<proc>[A-Za-z_0-9]+) pid=\d+\) ?")
_HEAD = re.compile(
    r"^[A-Z]+ (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[(?P<file>[^\]:]+):\d+\] ?(?P<message>.*)$", re.ASCII
)
_NUMBER = r"(-?\d+(?:\.\d+)?)"


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _truth(text: str) -> bool:
    return text == "True"


# (pattern searched in a message, fields of its groups with their converters); a field's first match counts
_FACTS: tuple[tuple[re.Pattern[str], tuple[tuple[str, Callable[[str], Any]], ...]], ...] = tuple(
    (re.compile(pattern, re.ASCII), tuple(targets))
    for pattern, targets in (
        (r"^Resolved architecture: (\S+)", [("architecture", str)]),
        (r"^Using max model len (\d{1,12})$", [("max_model_len", int)]),
        (r"max_num_batched_tokens=(\d{1,12})\.", [("max_num_batched_tokens", int)]),
        (r"^Using (\w+) attention backend out of", [("attention_backend", str)]),
        (r"^Using AttentionBackendEnum\.(\w+) backend", [("attention_backend", str)]),
        (r"^Using \w+ KV cache layout for (\w+) backend", [("attention_backend", str)]),
        (rf"^Loading weights took {_NUMBER} seconds", [("weights_load_s", float)]),
        (
            rf"^Model loading took {_NUMBER} GiB(?: memory)? and {_NUMBER} seconds",
            [("model_load_gib", float), ("model_load_s", float)],
        ),
        (rf"^Dynamo bytecode transform time: {_NUMBER} s", [("dynamo_s", float)]),
        (
            rf"^torch\.compile (?:and initial profiling/warmup run together )?took {_NUMBER} s in total",
            [("torch_compile_s", float)],
        ),
        (rf"^Initial profiling/warmup run took {_NUMBER} s", [("profiling_s", float)]),
        (rf"^Estimated CUDA graph memory: {_NUMBER} GiB", [("estimated_graph_gib", float)]),
        (rf"^Available KV cache memory: {_NUMBER} GiB", [("available_kv_gib", float)]),
        (
            r"^Overriding num_gpu_blocks=(\d{1,12}) with num_gpu_blocks_override=(\d{1,12})",
            [("num_gpu_blocks_natural", int), ("num_gpu_blocks_override", int)],
        ),
        (r"KV cache size: (\d[\d,]{0,20}) tokens", [("kv_tokens", _int)]),
        (rf"^Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x", [("max_concurrency", float)]),
        (
            rf"^Graph capturing finished in (\d{{1,12}}) secs, took {_NUMBER} GiB",
            [("capture_s", int), ("capture_gib", float)],
        ),
        (rf"^CUDA graph pool memory: {_NUMBER} GiB \(actual\)", [("graph_pool_actual_gib", float)]),
        (
            rf"^init engine \(profile, create kv cache, warmup model\) took {_NUMBER} s"
            rf"(?: \(compilation: {_NUMBER} s\))?",
            [("engine_init_s", float), ("engine_init_compile_s", float)],
        ),
    )
)
_CONFIG = re.compile(r"^Initializing a V1 LLM engine \(v([^)]+)\) with config: ")
_CONFIG_FACTS: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
    ("enforce_eager", r"\benforce_eager=(True|False)", _truth),
    ("prefix_caching", r"\benable_prefix_caching=(True|False)", _truth),
    ("cudagraph_mode", r"'cudagraph_mode': <CUDAGraphMode\.(\w+):", str),
    ("compile_mode", r"'mode': <CompilationMode\.(\w+):", str),
)
_SIZES = re.compile(r"'cudagraph_capture_sizes': \[([\d, ]*)\]", re.ASCII)
_BANNER = re.compile(r"\bversion (\d+\.\d+[^\s,]*)")
_COMPILED = re.compile(rf"^Compiling a graph for compile range .+ takes {_NUMBER} s", re.ASCII)
_JIT = re.compile(r"^Triton kernel JIT compilation during inference: (.+?)\. ")
_PADDING = re.compile(
    r"^\|\s*(\d{1,9})\s*\|\s*(\d{1,9})\s*\|\s*(\d{1,9})\s*\|\s*(NONE|PIECEWISE|FULL)\s*\|\s*(\d{1,9})\s*\|$",
    re.ASCII,
)
_CAPTURE_BAR = re.compile(
    r"^Capturing CUDA graphs \(.*?(PIECEWISE|FULL)\):.*\| (\d{1,6})/(\d{1,6}) \[", re.ASCII
)
_CACHE_MARKS = {
    "Directly load AOT compilation from path": "aot",
    "Compiling a graph for compile range": "compiled",
    "saved AOT compiled function to": "compiled",
    "Directly load the compiled graph(s)": "loaded",
    "Compiling model again due to a load failure": "failed",
}


def parse_server_log(text: str) -> ServerLog:
    """Read a log. Never fails: a text that is no engine log gives a ServerLog without facts."""
    facts: dict[str, Any] = {}
    padding: Counter[tuple[int, int, int, str]] = Counter()
    marks: set[str] = set()
    jit: list[tuple[str, datetime | None]] = []
    ready: datetime | None = None
    last_line = ""
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw).rstrip()
        if not line.strip():
            continue
        last_line = line
        head = _HEAD.match(line)
        message = head["message"] if head else line
        if row := _PADDING.match(message):
            unpadded, padded, paddings, mode, count = row.groups()
            padding[int(unpadded), int(padded), int(paddings), mode] += int(count)
        elif head is None:
            _unheaded(message, facts)
        elif config := _CONFIG.match(message):
            _config(message, config[1], facts)
        elif kernel := _JIT.match(message):
            jit.append((kernel[1], _time(head["time"])))
        else:
            if message.startswith("Starting vLLM server on"):
                ready = ready or _time(head["time"])
            _message(message, facts, marks)
    facts["inductor_s"] = round(facts["inductor_s"], 6) if "inductor_s" in facts else None
    facts["compile_cache"] = _compile_cache(marks, facts.get("compile_mode"), facts)
    return ServerLog(
        **facts,
        jit_compilations=len(jit),
        jit_events=tuple(JitEvent(kernel, _seconds(ready, when)) for kernel, when in jit),
        last_line=last_line[:500],
        error_lines=root_causes(text),
        padding_rows=tuple(PaddingRow(*key, count) for key, count in sorted(padding.items())),
    )


def _message(message: str, facts: dict[str, Any], marks: set[str]) -> None:
    for pattern, targets in _FACTS:
        if found := pattern.search(message):
            for (name, convert), value in zip(targets, found.groups(), strict=True):
                if value is not None:
                    facts.setdefault(name, convert(value))
            return
    if found := _COMPILED.match(message):
        facts["inductor_s"] = facts.get("inductor_s", 0.0) + float(found[1])
    for start, mark in _CACHE_MARKS.items():
        if message.startswith(start):
            marks.add(mark)
    if "vllm_version" not in facts and (found := _BANNER.search(message)):
        facts["vllm_version"] = found[1]
    if SHUTDOWN.match(message):
        facts["shutdown_requested"] = True


def _unheaded(message: str, facts: dict[str, Any]) -> None:
    """Lines without a log head: uvicorn's and the capture bars."""
    if message.startswith("INFO:") and message.endswith("Application startup complete."):
        facts["application_started"] = True
    elif (bar := _CAPTURE_BAR.match(message)) and bar[2] == bar[3]:
        facts[f"graphs_captured_{bar[1].lower()}"] = int(bar[2])


def _config(message: str, version: str, facts: dict[str, Any]) -> None:
    facts["vllm_version"] = version  # of the engine process: goes before the banner's
    for name, pattern, convert in _CONFIG_FACTS:
        if found := re.search(pattern, message):
            facts[name] = convert(found[1])
    if sizes := _SIZES.search(message):
        facts["capture_sizes"] = tuple(int(s) for s in re.findall(r"\d{1,9}", sizes[1]))


def _compile_cache(marks: set[str], mode: str | None, facts: dict[str, Any]) -> CompileCache | None:
    if "failed" in marks:
        return "invalid"
    if "compiled" in marks:
        return "cold"
    if "aot" in marks:
        return "warm"
    if "loaded" in marks:
        return "partial"
    return "none" if mode == "NONE" and facts.get("engine_init_s") is not None else None


def _time(text: str) -> datetime | None:
    """Log time; it has no year and no zone, so only differences within a log mean anything."""
    try:
        return datetime.strptime(f"2000-{text} +0000", "%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return None


def _seconds(begin: datetime | None, end: datetime | None) -> int | None:
    if begin is None or end is None:
        return None
    return int((end - begin).total_seconds()) % (366 * 86_400)  # a log may run over new year's eve


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
