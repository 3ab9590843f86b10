"""Facts in the engine's log (stdout and stderr together), as vLLM 0.23.0 and its CPU build write it.

A fact whose line is absent is None (or an empty tuple). `missing_facts` asks for the lines that a log of its kind must
have, so that a renamed line is an error and never a silent gap.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

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
    """A Triton kernel compiled while serving. `after_ready_s`: log time since the server's start line, whole seconds
    (both lines are cut to the second); None without that line."""

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
    start_s: int | None = None  # log time from the first line to the server's start line, whole seconds
    first_clock_s: int | None = None  # the two lines' seconds into a quarter of an hour, which is the same in all zones
    ready_clock_s: int | None = None
    engine_init_compile_s: float | None = None
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
            return "finishing" if self.enforce_eager or self.cudagraph_mode in (None, "NONE") else "capturing"
        if self.torch_compile_s is not None or self.estimated_graph_gib is not None:
            return "profiling"
        if self.model_load_s is not None:
            return "profiling" if self.compile_mode in (None, "NONE") else "compiling"
        return "starting" if self.enforce_eager is None else "loading"

    def to_dict(self) -> dict[str, Any]:
        """As plain lists, dicts, strings and numbers, for JSON."""
        return {name: list(fact) if isinstance(fact, tuple) else fact for name, fact in asdict(self).items()}


_ALWAYS = (
    "vllm_version", "architecture", "max_model_len", "enforce_eager", "cudagraph_mode", "compile_mode",
    "attention_backend", "kv_tokens", "max_concurrency", "engine_init_s",
)  # fmt: skip
_ON_GPU = ("max_num_batched_tokens", "model_load_s", "available_kv_gib")
_COMPILED = ("dynamo_s", "torch_compile_s", "profiling_s", "compile_cache", "engine_init_compile_s")
_WITH_GRAPHS = ("estimated_graph_gib", "capture_s", "capture_gib", "graph_pool_actual_gib", "capture_sizes")


def missing_facts(log: ServerLog, *, graphs: bool, compiled: bool, gpu: bool) -> tuple[str, ...]:
    """Facts that the log of a started server must hold and does not, in the order of its lines.

    `graphs`, `compiled`: the arm captures CUDA graphs, uses torch.compile; `gpu`: False for the CPU build, which prints
    nothing of model loading, KV memory, compile totals and capture.
    """
    wanted: tuple[str, ...] = _ALWAYS
    if gpu:
        wanted += _ON_GPU + (_COMPILED if compiled else ()) + (_WITH_GRAPHS if graphs else ())
    missing = [name for name in wanted if getattr(log, name) in (None, ())]
    return tuple(missing if log.application_started else [*missing, "application_started"])


_PREFIX = re.compile(r"^\((?P<proc>[A-Za-z_0-9]+) pid=\d+\) ?")
_HEAD = re.compile(r"^[A-Z]+ (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]:]+:\d+\] ?(?P<message>.*)$", re.ASCII)
_PATTERNS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_FACTS = tuple(
    re.compile(pattern.replace("NUMBER", r"-?\d+(?:\.\d+)?").replace("COUNT", r"\d{1,12}"), re.ASCII)
    for pattern in _PATTERNS["facts"]
)
_CONFIG = re.compile(r"^Initializing a V1 LLM engine \(v([^)]+)\) with config: ")
_CONFIG_FACTS = tuple(map(re.compile, _PATTERNS["config"]))
_SIZES = re.compile(r"'cudagraph_capture_sizes': \[([\d, ]*)\]", re.ASCII)
_BANNER = re.compile(r"\bversion (\d+\.\d+[^\s,]*)")
_RANGE_COMPILED = re.compile(r"^Compiling a graph for compile range .+ takes (-?\d+(?:\.\d+)?) s", re.ASCII)
_JIT = re.compile(r"^Triton kernel JIT compilation during inference: (.+?)\. ")
_PADDING = re.compile(r"^\|" + r"\s*(\d{1,9})\s*\|" * 3 + r"\s*(NONE|PIECEWISE|FULL)\s*\|\s*(\d{1,9})\s*\|$", re.ASCII)
_CAPTURE_BAR = re.compile(r"^Capturing CUDA graphs \(.*?(PIECEWISE|FULL)\):.*\| (\d{1,6})/(\d{1,6}) \[", re.ASCII)
# starts of messages that tell the state of the compile cache; the first kind in this order that was seen counts
_CACHE_MARKS: tuple[tuple[str, CompileCache], ...] = (
    ("Compiling model again due to a load failure", "invalid"),
    ("Compiling a graph for compile range", "cold"),
    ("saved AOT compiled function to", "cold"),
    ("Directly load AOT compilation from path", "warm"),
    ("Directly load the compiled graph(s)", "partial"),
)
_CONVERT: dict[str, Callable[[str], Any]] = {
    "str | None": str,
    "int | None": lambda text: int(text.replace(",", "")),
    "float | None": float,
    "bool | None": lambda text: text == "True",
}
_TYPES = {field.name: str(field.type) for field in fields(ServerLog)}


def parse_server_log(text: str) -> ServerLog:
    """Read a log. Never fails: a text that is no engine log gives a ServerLog without facts."""
    facts: dict[str, Any] = {}
    padding: Counter[tuple[int, int, int, str]] = Counter()
    marks: set[str] = set()
    jit: list[tuple[str, datetime | None]] = []
    first: datetime | None = None
    ready: datetime | None = None
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw).rstrip()
        if not line.strip():
            continue
        facts["last_line"] = line[:500]
        head = _HEAD.match(line)
        message = head["message"] if head else line
        first = first or (_time(head["time"]) if head else None)
        if row := _PADDING.match(message):
            unpadded, padded, paddings, mode, count = row.groups()
            padding[int(unpadded), int(padded), int(paddings), mode] += int(count)
        elif head is None:
            _unheaded(message, facts)
        elif config := _CONFIG.match(message):
            facts["vllm_version"] = config[1]  # of the engine process: goes before the banner's
            _fill(facts, message, _CONFIG_FACTS)
            if sizes := _SIZES.search(message):
                facts["capture_sizes"] = tuple(int(s) for s in re.findall(r"\d{1,9}", sizes[1]))
        elif kernel := _JIT.match(message):
            jit.append((kernel[1], _time(head["time"])))
        elif message.startswith("Starting vLLM server on"):
            ready = ready or _time(head["time"])
        else:
            _message(message, facts, marks)
    cache = next((state for mark, state in _CACHE_MARKS if mark in marks), None)
    if cache is None and facts.get("compile_mode") == "NONE" and "engine_init_s" in facts:
        cache = "none"
    return ServerLog(
        **facts,
        compile_cache=cache,
        start_s=_seconds(first, ready),
        first_clock_s=_in_quarter_s(first),
        ready_clock_s=_in_quarter_s(ready),
        jit_events=tuple(JitEvent(kernel, _seconds(ready, when)) for kernel, when in jit),
        error_lines=root_causes(text),
        padding_rows=tuple(PaddingRow(*key, count) for key, count in sorted(padding.items())),
    )


def _fill(facts: dict[str, Any], message: str, patterns: tuple[re.Pattern[str], ...]) -> None:
    for found in filter(None, (pattern.search(message) for pattern in patterns)):
        for name, value in found.groupdict().items():
            if value is not None:
                facts.setdefault(name, _CONVERT[_TYPES[name]](value))


def _message(message: str, facts: dict[str, Any], marks: set[str]) -> None:
    _fill(facts, message, _FACTS)
    marks.update(mark for mark, _ in _CACHE_MARKS if message.startswith(mark))
    if found := _RANGE_COMPILED.match(message):
        facts["inductor_s"] = round(facts.get("inductor_s", 0.0) + float(found[1]), 6)
    if "vllm_version" not in facts and (found := _BANNER.search(message)):
        facts["vllm_version"] = found[1]
    if message.startswith("SIMULATED: "):
        facts["simulated"] = True
    if SHUTDOWN.match(message):
        facts["shutdown_requested"] = True


def _unheaded(message: str, facts: dict[str, Any]) -> None:
    """Lines without a log head: uvicorn's and the capture bars."""
    if message.startswith("INFO:") and message.endswith("Application startup complete."):
        facts["application_started"] = True
    elif (bar := _CAPTURE_BAR.match(message)) and bar[2] == bar[3]:
        facts[f"graphs_captured_{bar[1].lower()}"] = int(bar[2])


def _time(text: str) -> datetime | None:
    """Log time; it has no year and no zone, so only differences within a log mean anything."""
    try:
        return datetime.strptime(f"2000-{text} +0000", "%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return None


def _in_quarter_s(moment: datetime | None) -> int | None:
    return None if moment is None else moment.minute % 15 * 60 + moment.second


def _seconds(begin: datetime | None, end: datetime | None) -> int | None:
    if begin is None or end is None:
        return None
    return int((end - begin).total_seconds()) % (366 * 86_400)  # a log may run over new year's eve
