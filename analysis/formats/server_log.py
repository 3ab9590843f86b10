"""Facts in the engine's log (stdout and stderr together), as vLLM 0.23.0 and its CPU build write it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

from analysis.formats.failure import SHUTDOWN, root_causes
from analysis.formats.server_log_facts import (
    CompileCache,
    JitEvent,
    PaddingRow,
    ServerLog,
    missing_facts,
)

__all__ = ["CompileCache", "JitEvent", "PaddingRow", "ServerLog", "missing_facts", "parse_server_log"]

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
