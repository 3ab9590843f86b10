"""`vllm serve` flags as the stand-in understands them, and what the engine makes of them."""

import argparse
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

from analysis.scheduling import GraphMode, SchedulerConfig, default_capture_sizes
from runner.standin.hardware import CARD_GIB, GIB, MAX_POSITION_EMBEDDINGS, WORKSPACE_GIB, Shape, shape_of

FAULTS = (
    "crash_at_load",  # the weights do not fit: exit 1
    "hang_in_capture",  # no further log line, never healthy
    "die_mid_bench",  # the engine core dies after a few requests: /health 503, later exit 0, as in truth
    "refuse_requests",  # every fourth completion gets 503
    "short_outputs",  # every fifth completion ends early
    "leave_orphan",  # a process in a session of its own survives the stop
)
FLAGS = {
    "host": "0.0.0.0", "port": 8000, "dtype": "bfloat16", "load-format": "auto", "tokenizer": "", "seed": 0,
    "max-model-len": MAX_POSITION_EMBEDDINGS, "gpu-memory-utilization": 0.92,
    "enforce-eager": False, "enable-prefix-caching": True, "async-scheduling": True,
    "block-size": 16, "num-gpu-blocks-override": 0, "max-num-seqs": 1024, "max-num-batched-tokens": 8192,
    "max-cudagraph-capture-size": 512,
    # known to the engine, without effect here
    "attention-backend": "", "generation-config": "auto", "revision": "", "tokenizer-mode": "auto",
    "uvicorn-log-level": "info", "disable-uvicorn-access-log": False, "fail-on-environ-validation": False,
    "disable-log-stats": False, "trust-remote-code": False, "cudagraph-metrics": False,
}  # fmt: skip


class VllmParser(argparse.ArgumentParser):
    """Flags by name with their defaults, which give the types; a switch also has a --no- form. Anything else ends the
    process with the engine's own words and exit status 2."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        super().__init__(prog="vllm", allow_abbrev=False)
        for name, default in flags.items():
            if isinstance(default, bool):
                self.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=default)
            else:
                self.add_argument(f"--{name}", type=type(default), default=default)

    def error(self, message: str) -> NoReturn:
        commands = "{chat,complete,serve,launch,bench,collect-env,run-batch}"
        sys.stderr.write(f"usage: vllm [-h] [-v]\n            {commands} ...\nvllm: error: {message}\n")
        sys.exit(2)


@dataclass(frozen=True)
class ServeSettings:
    """One server's. `given`: the arguments that are not defaults; `graphs`: how many to capture, by runtime mode."""

    args: dict[str, Any]
    given: dict[str, Any]
    shape: Shape
    compiled: bool
    graphs: dict[str, int]
    natural_blocks: int
    kv_gib: float
    scheduler: SchedulerConfig
    speed: float
    fault: str | None

    @property
    def needed_blocks(self) -> int:
        """For one request as long as the context."""
        return self.scheduler.blocks_for(self.scheduler.max_model_len)

    @property
    def failing_phase(self) -> str | None:
        """The phase of the start in which the engine fails with these settings, or None."""
        if self.fault == "crash_at_load":
            return "load"
        if self.scheduler.max_model_len > MAX_POSITION_EMBEDDINGS:
            return "core"
        return "kv" if self.kv_gib <= 0 or self.needed_blocks > self.scheduler.usable_blocks else None


def parse_serve(argv: list[str]) -> ServeSettings:
    """From a `serve` command line and the environment. Ends the process on a flag (2) or a variable (1) that is bad."""
    speed, fault = os.environ.get("CAMPAIGN_STANDIN_SPEED") or "1", os.environ.get("CAMPAIGN_STANDIN_FAULT")
    if not re.fullmatch(r"\d*\.?\d+", speed) or float(speed) == 0:
        sys.exit(f"CAMPAIGN_STANDIN_SPEED={speed}: give a number above 0, such as 50")
    if fault and fault not in FAULTS:
        sys.exit(f"CAMPAIGN_STANDIN_FAULT={fault}: give one of {', '.join(FAULTS)}")
    parser, modes = VllmParser(FLAGS), get_args(GraphMode)
    parser.add_argument("model")
    parser.add_argument("--cudagraph-capture-sizes", type=int, nargs="+")
    parser.add_argument("-cc.cudagraph_mode", type=str.upper, choices=modes, default="FULL_AND_PIECEWISE")
    args = vars(parser.parse_args(argv))
    given = {name: value for name, value in args.items() if value != parser.get_default(name)}
    args["tokenizer"] = args["tokenizer"] or args["model"]
    compiled, seqs = not args["enforce_eager"], args["max_num_seqs"]
    mode: GraphMode = args["cc.cudagraph_mode"] if compiled else "NONE"
    default = default_capture_sizes(seqs, args["max_cudagraph_capture_size"])
    sizes = () if mode == "NONE" else tuple(sorted(set(args["cudagraph_capture_sizes"] or default)))
    graphs = {"PIECEWISE": len(sizes) if "PIECEWISE" in mode else 0}
    graphs["FULL"] = sum(size <= seqs for size in sizes) if mode != "PIECEWISE" else 0
    graphs = {name: count for name, count in graphs.items() if count}
    shape = shape_of(args["model"])
    kv_gib = args["gpu_memory_utilization"] * CARD_GIB - shape.weights_gib - WORKSPACE_GIB
    kv_gib -= sum(graphs.values()) * shape.graph_estimate_gib
    natural = int(kv_gib * GIB // (shape.kv_bytes_per_token * args["block_size"]))
    scheduler = SchedulerConfig(
        max(args["num_gpu_blocks_override"] or natural, 1), args["block_size"],
        args["max_num_batched_tokens"], seqs, args["max_model_len"], sizes, mode, args["async_scheduling"],
    )  # fmt: skip
    return ServeSettings(args, given, shape, compiled, graphs, natural, kv_gib, scheduler, float(speed), fault or None)
