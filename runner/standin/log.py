"""The engine's log: 0.23.0's lines from `log_lines.txt`, filled in for the settings and the scaled clock."""

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from runner.standin.hardware import GIB, MAX_POSITION_EMBEDDINGS
from runner.standin.settings import ServeSettings

LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR"}
PROCESSES = {"A": "APIServer", "C": "EngineCore"}
GRAPH_MODE_VALUES = {"PIECEWISE": 1, "FULL": 2, "FULL_DECODE_ONLY": (2, 0), "FULL_AND_PIECEWISE": (2, 1)}
COMPILE_KEY = ("model", "dtype", "max_model_len", "max_num_batched_tokens")


class EngineLog:
    """The log of one server process: the logger's lines on stdout, raw ones on stderr. `phases`: seconds of each phase
    of the start, in order, on the clock that runs `speed` times faster than a card's."""

    def __init__(self, s: ServeSettings) -> None:
        self._sections: dict[str, list[str]] = {}
        for line in Path(__file__).with_name("log_lines.txt").read_text("utf-8").splitlines():
            if line.startswith("["):
                self._sections[line[1:-1]] = lines = []
            elif not line.startswith("#"):
                lines.append(line)
        mode, sizes, count = s.scheduler.graph_mode, s.scheduler.capture_sizes, sum(s.graphs.values())
        key = hashlib.sha256(repr([s.compiled, mode, sizes, *(s.args[k] for k in COMPILE_KEY)]).encode())
        cache = os.environ.get("VLLM_CACHE_ROOT") or str(Path.home() / ".cache" / "vllm-stand-in")
        self._saved = Path(cache, "torch_compile_cache/torch_aot_compile", key.hexdigest(), "rank_0_0/model")
        warm = self._saved.exists()
        weights_s = 0.0 if s.args["load_format"] == "dummy" else s.shape.weights_gib / 5
        compile_s = (s.shape.compile_warm_s if warm else s.shape.compile_cold_s) if s.compiled else 0.0
        on_card = {
            "imports": 8.0, "core": 16.0, "device": 2.0, "load": weights_s + 1.1, "compile": compile_s,
            "profile": 6.0, "kv": 2.8 if count else 0.5, "capture": count * s.shape.capture_s, "warm-up": 0.5,
            "api": 1.0,
        }  # fmt: skip
        self.phases = {phase: seconds / s.speed for phase, seconds in on_card.items()}
        estimate, actual = count * s.shape.graph_estimate_gib, count * s.shape.graph_actual_gib
        block_gib = s.shape.kv_bytes_per_token * s.scheduler.block_size / GIB
        tokens = s.scheduler.num_gpu_blocks * s.scheduler.block_size
        phases = self.phases
        self._values = s.args | {
            "s": s, "pid": os.getpid(), "cache": cache, "saved": self._saved, "key": key.hexdigest(),
            "compiled": s.compiled, "uncompiled": not s.compiled,
            "warm": s.compiled and warm, "cold": s.compiled and not warm,
            "compile_mode": "VLLM_COMPILE: 3" if s.compiled else "NONE: 0",
            "graph_mode": f"{mode}: {GRAPH_MODE_VALUES.get(mode, 0)}", "sizes": list(sizes),
            "graphs": ", ".join(f"{name}={n} (largest={sizes[-1]})" for name, n in s.graphs.items()),
            "piecewise": s.graphs.get("PIECEWISE"), "full": s.graphs.get("FULL"),
            "skipped": not count and not s.args["enforce_eager"],
            "estimate_gib": estimate, "actual_gib": actual, "difference_gib": actual - estimate,
            "difference_share": (actual - estimate) / actual if count else 0.0,
            "kv_tokens": tokens, "concurrency": tokens / s.scheduler.max_model_len,
            "longest": MAX_POSITION_EMBEDDINGS, "memory": s.kv_gib > 0, "no_memory": s.kv_gib <= 0,
            "needed_gib": s.needed_blocks * block_gib, "pool_gib": s.scheduler.num_gpu_blocks * block_gib,
            "load_s": phases["load"], "weights_s": weights_s / s.speed,
            "compile_s": phases["compile"], "dynamo_s": phases["compile"] * (0.6 if warm else 0.31),
            "inductor_s": phases["compile"] * (0.33 if warm else 0.41), "profiling_s": 1.07 / s.speed,
            "capture_s": phases["capture"], "bar_s": phases["capture"] / max(len(s.graphs), 1),
            "bar_rate": s.speed / s.shape.capture_s,
            "init_s": sum(phases[name] for name in ("compile", "profile", "kv", "capture", "warm-up")),
        }  # fmt: skip

    def say(self, section: str, **values: Any) -> None:
        """Print a section. That of a cold compile fills the compile cache."""
        if section == "compile" and self._values["cold"]:
            self._saved.parent.mkdir(parents=True, exist_ok=True)
            self._saved.touch()
        for line in self._sections[section]:
            condition, _, rest = line[1:].partition(" ") if line.startswith("?") else ("", "", line)
            if not condition or self._values[condition]:
                process, level, where, message = rest.split(" ", 3)
                prefix, text = f"({PROCESSES[process]} pid={os.getpid()}) ", message.format_map(self._values | values)
                if level == "R":
                    print(prefix + text, file=sys.stderr, flush=True)
                else:
                    head = f"{LEVELS[level]} {time.strftime('%m-%d %H:%M:%S')} [{where}] "
                    print(prefix + head + text, flush=True)
