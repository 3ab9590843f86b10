"""The engine's log: 0.23.0's lines from `log_lines.txt`, filled in for the settings, with the phases'
durations."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from runner.standin.hardware import CARD_GIB
from runner.standin.settings import ServeSettings

LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR"}
PROCESSES = {"A": "APIServer", "C": "EngineCore"}
GRAPH_MODE_VALUES = {
    "NONE": 0,
    "PIECEWISE": 1,
    "FULL": 2,
    "FULL_DECODE_ONLY": (2, 0),
    "FULL_AND_PIECEWISE": (2, 1),
}
START = ("imports", "core", "device", "load", "compile", "profile", "kv", "capture", "warm-up", "api")


def write(process: str, level: str, where: str, message: str) -> None:
    """One line as the engine prints it: the logger's on stdout, raw ones on stderr, both with the process."""
    prefix = f"({PROCESSES[process]} pid={os.getpid()}) "
    if level == "R":
        print(prefix + message, file=sys.stderr)
    else:
        print(f"{prefix}{LEVELS[level]} {time.strftime('%m-%d %H:%M:%S')} [{where}] {message}")


def flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


class EngineLog:
    """The phases of one server process. Asking for the compile phase fills the compile cache."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._sections: dict[str, tuple[str, list[str]]] = {}
        text = files("runner.standin").joinpath("log_lines.txt").read_text("utf-8")
        for line in text.splitlines():
            if line.startswith("["):
                name, seconds = line[1:-1].split()
                lines: list[str] = []
                self._sections[name] = (seconds, lines)
            elif not line.startswith("#"):
                lines.append(line)
        self._values, self._conditions = _facts(settings)

    def start(self) -> Iterator[tuple[str, float]]:
        """(phase, seconds on the card) of the start; `say` a phase's lines when its time is over."""
        for name in START:
            yield name, float(self._sections[name][0].format_map(self._values))

    def say(self, section: str, **values: Any) -> None:
        if section == "compile" and "cold" in self._conditions:
            saved = Path(self._values["saved"])
            saved.parent.mkdir(parents=True, exist_ok=True)
            saved.touch()
        for line in self._sections[section][1]:
            condition, _, rest = line[1:].partition(" ") if line.startswith("?") else ("", "", line)
            if not condition or condition in self._conditions:
                process, level, where, message = rest.split(" ", 3)
                write(process, level, where, message.format_map({**self._values, **values}))
        flush()

    def intervals(self, interval_s: float, prompt: float, generated: float, gauges: dict[str, float]) -> None:
        """The ten-second line. Preemptions are never in it, as in 0.23.0."""
        message = (
            f"Engine 000: Avg prompt throughput: {prompt / interval_s:.1f} tokens/s, "
            f"Avg generation throughput: {generated / interval_s:.1f} tokens/s, "
            f"Running: {gauges['num_requests_running']:.0f} reqs, "
            f"Waiting: {gauges['num_requests_waiting']:.0f} reqs, "
            f"GPU KV cache usage: {gauges['kv_cache_usage_perc'] * 100:.1f}%, Prefix cache hit rate: 0.0%"
        )
        write("A", "I", "loggers.py:271", message)

    def graph_table(self, counts: Counter[tuple[int, int, str]]) -> None:
        """--cudagraph-metrics: steps since the last table by unpadded and padded tokens and runtime mode."""
        settings = self._settings
        head = "| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |"
        rule = "|-----------------|---------------|--------------|--------------|-------|"
        rows = ["**CUDAGraph Config Settings:**", "", f"- Mode: {settings.scheduler.graph_mode}"]
        rows += [f"- Capture sizes: {list(settings.scheduler.capture_sizes)}", ""]
        rows += ["**CUDAGraph Stats:**", "", head, rule]
        for (unpadded, padded, mode), count in counts.most_common():
            paddings = padded - unpadded
            rows.append(f"| {unpadded:<15} | {padded:<13} | {paddings:<12} | {mode:<12} | {count:<5} |")
        for row in [*rows, ""]:
            write("A", "I", "cuda_graph.py:123", row)


def _facts(s: ServeSettings) -> tuple[dict[str, Any], set[str]]:
    """Values of the lines' placeholders, and the conditions that hold."""
    args, shape, sizes = s.args, s.shape, s.scheduler.capture_sizes
    cache = os.environ.get("VLLM_CACHE_ROOT") or str(Path.home() / ".cache" / "vllm-stand-in")
    saved = Path(cache) / "torch_compile_cache" / "torch_aot_compile" / s.compile_key / "rank_0_0" / "model"
    warm = saved.exists()
    compile_s = (shape.compile_warm_s if warm else shape.compile_cold_s) if s.compiled else 0.0
    count = sum(s.graphs.values())
    estimate, actual = round(count * shape.graph_estimate_gib, 2), round(count * shape.graph_actual_gib, 2)
    capture_s = count * shape.capture_s
    weights_s = 0.0 if args["load_format"] == "dummy" else shape.weights_gib / 5
    tokens = s.scheduler.num_gpu_blocks * s.scheduler.block_size
    utilization, share = args["gpu_memory_utilization"], estimate / CARD_GIB
    values = {
        **args,
        "given": {"model_tag": args["model"], **s.given, "model": args["model"]},
        "tokenizer": args["tokenizer"] or args["model"],
        "load_format": args["load_format"] or "auto",
        "host": args["host"] or "0.0.0.0",
        "eager": args["enforce_eager"],
        "prefix_caching": args["enable_prefix_caching"],
        "served_name": s.served_name,
        "compile_mode": "VLLM_COMPILE: 3" if s.compiled else "NONE: 0",
        "custom_ops": "none" if s.compiled else "all",
        "graph_mode": f"{s.scheduler.graph_mode}: {GRAPH_MODE_VALUES[s.scheduler.graph_mode]}",
        "warmups": int(bool(sizes)),
        "sizes": list(sizes),
        "largest": sizes[-1] if sizes else 0,
        "weights_gib": shape.weights_gib,
        "weights_s": weights_s,
        "load_s": weights_s + 1.1,
        "cache": cache,
        "saved": saved,
        "key": s.compile_key,
        "compile_s": compile_s,
        "dynamo_s": compile_s * (0.6 if warm else 0.31),
        "inductor_s": compile_s * (0.33 if warm else 0.41),
        "captured_modes": ", ".join(f"{mode}={n} (largest={sizes[-1]})" for mode, n in s.graphs.items()),
        "piecewise": s.graphs.get("PIECEWISE", 0),
        "full": s.graphs.get("FULL", 0),
        "graph_profile_s": 2.8 if count else 0.5,
        "estimate_gib": estimate,
        "actual_gib": actual,
        "difference_gib": round(actual - estimate, 2),
        "difference_pct": (actual - estimate) / actual * 100 if count else 0.0,
        "kv_gib": round(s.kv_gib, 2),
        "utilization": utilization,
        "utilization_less": utilization - share,
        "utilization_more": utilization + share,
        "natural_blocks": s.natural_blocks,
        "override": args["num_gpu_blocks_override"],
        "kv_tokens": tokens,
        "concurrency": tokens / args["max_model_len"],
        "capture_s": capture_s,
        "init_s": compile_s + capture_s + (9.3 if count else 7.0),
        "pid": os.getpid(),
    }
    holds = {
        "asynchronous": s.scheduler.asynchronous,
        "eager": args["enforce_eager"],
        "weights": weights_s > 0,
        "compiled": s.compiled,
        "uncompiled": not s.compiled,
        "warm": s.compiled and warm,
        "cold": s.compiled and not warm,
        "graphs": count > 0,
        "piecewise": "PIECEWISE" in s.graphs,
        "full": "FULL" in s.graphs,
        "skipped": not count and not args["enforce_eager"],
        "override": args["num_gpu_blocks_override"] is not None,
    }
    return values, {name for name, value in holds.items() if value}
