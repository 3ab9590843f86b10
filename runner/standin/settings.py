"""`vllm serve` flags as the stand-in understands them, and what the engine makes of them."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

from analysis.scheduling import GraphMode, SchedulerConfig, default_capture_sizes
from runner.standin.hardware import GIB, Shape, shape_of

FAULTS = (
    "crash_at_load",  # the weights do not fit: exit 1
    "hang_in_capture",  # no further log line, never healthy
    "die_mid_bench",  # the engine core dies after a few requests: /health 503, later exit 0, as in truth
    "refuse_requests",  # every fourth completion gets 503
    "short_outputs",  # every fifth completion ends early
    "slow_first_request",
    "leave_orphan",  # a process in a session of its own survives the stop
)
TEXT_FLAGS = (
    "tokenizer", "load-format", "generation-config", "attention-backend", "uvicorn-log-level", "revision",
    "tokenizer-revision", "disable-access-log-for-endpoints", "shutdown-timeout", "tokenizer-mode",
)  # fmt: skip
SWITCHES = (
    "cudagraph-metrics", "disable-uvicorn-access-log", "fail-on-environ-validation", "enforce-eager",
    "trust-remote-code", "disable-log-stats", "enable-log-requests", "skip-tokenizer-init",
)  # fmt: skip
MODES = {"0": "NONE", "1": "STOCK_TORCH_COMPILE", "2": "DYNAMO_TRACE_ONCE", "3": "VLLM_COMPILE"}


class VllmParser(argparse.ArgumentParser):
    """Unknown arguments end the process with the engine's own words and exit status 2."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(
            "usage: vllm [-h] [-v]\n"
            "            {chat,complete,serve,launch,bench,collect-env,run-batch} ...\n"
            f"vllm: error: {message}\n"
        )
        sys.exit(2)


def speed() -> float:
    """CAMPAIGN_STANDIN_SPEED, a number above 0; 1 if not set."""
    text = os.environ.get("CAMPAIGN_STANDIN_SPEED") or "1"
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if value <= 0:
        sys.exit(f"CAMPAIGN_STANDIN_SPEED={text}: give a number above 0, such as 50")
    return value


def fault() -> str | None:
    """CAMPAIGN_STANDIN_FAULT, one of FAULTS, or None."""
    name = os.environ.get("CAMPAIGN_STANDIN_FAULT") or None
    if name is not None and name not in FAULTS:
        sys.exit(f"CAMPAIGN_STANDIN_FAULT={name}: give one of {', '.join(FAULTS)}")
    return name


@dataclass(frozen=True)
class ServeSettings:
    args: dict[str, Any]  # as parsed, defaults included
    given: dict[str, Any]  # given on the command line, by destination name
    shape: Shape
    compiled: bool
    natural_blocks: int
    kv_gib: float
    scheduler: SchedulerConfig

    @property
    def graphs(self) -> dict[str, int]:
        """Graphs to capture, by runtime mode."""
        mode, sizes = self.scheduler.graph_mode, self.scheduler.capture_sizes
        counts = {
            "PIECEWISE": len(sizes) if mode in ("PIECEWISE", "FULL_AND_PIECEWISE") else 0,
            "FULL": 0 if mode == "PIECEWISE" else sum(size <= self.scheduler.max_num_seqs for size in sizes),
        }
        return {name: count for name, count in counts.items() if count}

    @property
    def served_name(self) -> str:
        return str((self.args["served_model_name"] or [self.args["model"]])[0])

    @property
    def compile_key(self) -> str:
        """What decides the compiled code: the key of the compile cache."""
        names = ("model", "dtype", "max_model_len", "max_num_batched_tokens")
        key = [self.compiled, self.scheduler.graph_mode, self.scheduler.capture_sizes]
        return hashlib.sha256(json.dumps([*key, *(self.args[name] for name in names)]).encode()).hexdigest()


def _parser() -> VllmParser:
    parser = VllmParser(prog="vllm", allow_abbrev=False)
    add = parser.add_argument
    add("model")
    for name in TEXT_FLAGS:
        add(f"--{name}")
    for name in SWITCHES:
        add(f"--{name}", action="store_true")
    for name in (
        "enable-prefix-caching",
        "use-tqdm-on-load",
        "async-scheduling",
        "enable-flashinfer-autotune",
    ):
        add(f"--{name}", action=argparse.BooleanOptionalAction, default=True)
    add("--host")
    add("--dtype", default="bfloat16")
    add("--served-model-name", nargs="+")
    add("--port", type=int, default=8000)
    add("--seed", type=int, default=0)
    add("--tensor-parallel-size", "-tp", type=int, default=1)
    add("--block-size", type=int, default=16)
    add("--max-model-len", type=int, default=None)
    add("--max-num-seqs", type=int, default=1024)
    add("--max-num-batched-tokens", type=int, default=8192)
    add("--num-gpu-blocks-override", type=int, default=None)
    add("--kv-cache-memory-bytes", type=_bytes)
    add("--gpu-memory-utilization", type=float, default=0.92)
    add("--max-cudagraph-capture-size", type=int)
    add("--cudagraph-capture-sizes", type=int, nargs="+")
    add("--compilation-config", "-cc", type=json.loads, default={})
    return parser


def _bytes(text: str) -> int:
    unit = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}.get(text[-1:], 0)
    return int(float(text[:-1]) * unit) if unit else int(text)


def _fold_compilation_flags(argv: list[str]) -> list[str]:
    """Turn `-cc.key=value` into one --compilation-config document; values are JSON where they parse as
    such."""
    rest, folded = [], {}
    for argument in argv:
        key, _, value = argument.partition("=")
        if key.startswith("-cc.") and value:
            try:
                folded[key[4:]] = json.loads(value)
            except json.JSONDecodeError:
                folded[key[4:]] = value
        else:
            rest.append(argument)
    return [*rest, "--compilation-config", json.dumps(folded)] if folded else rest


def parse_serve(argv: list[str]) -> ServeSettings:
    """Settings of a `serve` command line. Ends the process with status 2 on an unknown flag or a bad
    value."""
    parser = _parser()
    argv = _fold_compilation_flags(argv)
    args = vars(parser.parse_args(argv))
    named = {word.partition("=")[0] for word in argv}
    given = {
        action.dest: args[action.dest]
        for action in parser._actions
        if any(option in named for option in action.option_strings)
    }
    shape = shape_of(args["model"])
    derived = _max_positions(args["model"], shape)
    if args["max_model_len"] is None:
        args["max_model_len"] = derived
    compilation = args["compilation_config"]
    eager = args["enforce_eager"]
    mode = str(compilation.get("mode", "NONE" if eager else "VLLM_COMPILE"))
    mode = "NONE" if eager else MODES.get(mode, mode)
    compiled = mode != "NONE"
    graph_mode = str(compilation.get("cudagraph_mode", "FULL_AND_PIECEWISE")).upper()
    if graph_mode not in get_args(GraphMode):
        parser.error(f"argument --compilation-config/-cc: invalid cudagraph_mode {graph_mode!r}")
    if eager or (not compiled and graph_mode in ("PIECEWISE", "FULL_AND_PIECEWISE")):
        graph_mode = "NONE"
    sizes = args["cudagraph_capture_sizes"] or compilation.get("cudagraph_capture_sizes")
    largest = args["max_cudagraph_capture_size"] or compilation.get("max_cudagraph_capture_size") or 512
    sizes = tuple(sorted(set(sizes))) if sizes else default_capture_sizes(args["max_num_seqs"], largest)
    if graph_mode == "NONE":
        sizes = ()
    graphs = len(sizes) * (2 if graph_mode == "FULL_AND_PIECEWISE" else 1)
    kv_bytes = args["kv_cache_memory_bytes"]
    kv_gib = kv_bytes / GIB if kv_bytes else shape.kv_gib(args["gpu_memory_utilization"], graphs)
    natural = int(kv_gib * GIB // (shape.kv_bytes_per_token * args["block_size"]))
    blocks = args["num_gpu_blocks_override"] or natural
    scheduler = SchedulerConfig(
        num_gpu_blocks=max(blocks, 1),
        block_size=args["block_size"],
        max_num_batched_tokens=args["max_num_batched_tokens"],
        max_num_seqs=args["max_num_seqs"],
        max_model_len=args["max_model_len"],
        capture_sizes=sizes,
        graph_mode=graph_mode,  # type: ignore[arg-type]
        asynchronous=args["async_scheduling"],
    )
    return ServeSettings(args, given, shape, compiled, natural, kv_gib, scheduler)


def _max_positions(model: str, shape: Shape) -> int:
    """Context length from MODEL/config.json, or the shape's where there is no such file."""
    try:
        return int(json.loads((Path(model) / "config.json").read_text())["max_position_embeddings"])
    except (OSError, ValueError, KeyError):
        return shape.max_position_embeddings


def start_error(settings: ServeSettings) -> tuple[str, str] | None:
    """(log section, error text) for settings that the engine refuses at start, or None."""
    limit, derived = settings.args["max_model_len"], _max_positions(settings.args["model"], settings.shape)
    if limit > derived:
        return "refused-settings", (
            f"User-specified max_model_len ({limit}) is greater than the derived max_model_len "
            f"(max_position_embeddings={derived} or model_max_length=None in model's config.json)."
        )
    if settings.kv_gib <= 0:
        return "refused-memory", (
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine."
        )
    scheduler = settings.scheduler
    needed = scheduler.blocks_for(limit)
    if needed > scheduler.usable_blocks:
        block_gib = settings.shape.kv_bytes_per_token * scheduler.block_size / GIB
        return "refused-memory", (
            f"To serve at least one request with the model's max seq len ({limit}), "
            f"({needed * block_gib:.2f} GiB KV cache is needed, which is larger than the available KV cache "
            f"memory ({scheduler.num_gpu_blocks * block_gib:.2f} GiB). Try increasing "
            "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    return None
