"""0.23.0's log lines and the start-up phases with their durations."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.standin.settings import ServeSettings

API, CORE = "APIServer", "EngineCore"
CAPTURE_LABELS = {"PIECEWISE": "mixed prefill-decode, PIECEWISE", "FULL": "decode, FULL"}
ROUTES = (
    ("/openapi.json", "HEAD, GET"), ("/docs", "HEAD, GET"), ("/load", "GET"), ("/version", "GET"), ("/health", "GET"),
    ("/metrics", "GET"), ("/v1/models", "GET"), ("/ping", "GET"), ("/v1/completions", "POST"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    process: str
    where: str  # file:line of the engine's source
    message: str
    level: str = "INFO"


@dataclass(frozen=True, slots=True)
class Raw:
    """Text on stderr, without the logger's format."""

    text: str


def write(*lines: Line | Raw) -> None:
    """Print lines as the engine does: the logger on stdout, uvicorn and progress bars on stderr, each line prefixed."""
    pid = os.getpid()
    stamp = time.strftime("%m-%d %H:%M:%S")
    for line in lines:
        if isinstance(line, Raw):
            sys.stderr.write(f"({API} pid={pid}) {line.text}\n")
            continue
        for part in line.message.split("\n"):
            sys.stdout.write(f"({line.process} pid={pid}) {line.level} {stamp} [{line.where}] {part}\n")
    sys.stdout.flush()
    sys.stderr.flush()


def banner(s: ServeSettings) -> list[Line | Raw]:
    model = s.args["model"]
    given = {"model_tag": model, **s.given, "model": model}
    logo = (
        "\n       █     █     █▄   ▄█\n ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.23.0\n"
        f"  █▄█▀ █     █     █     █  model   {model}\n   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀\n"
    )
    lines: list[Line | Raw] = [
        Line(API, "standin.py:1", "SIMULATED: this is a stand-in engine on a model of the scheduler, not vLLM.", "WARNING"),
        Line(API, "api_utils.py:339", logo),
        Line(API, "api_utils.py:273", f"non-default args: {given}"),
        Line(API, "model.py:611", "Resolved architecture: Qwen2ForCausalLM"),
        Line(API, "model.py:1745", f"Using max model len {s.args['max_model_len']}"),
        Line(
            API, "scheduler.py:239",
            f"Chunked prefill is enabled with max_num_batched_tokens={s.args['max_num_batched_tokens']}.",
        ),
        Line(API, "vllm.py:999", "Asynchronous scheduling is enabled."),
    ]  # fmt: skip
    if s.args["enforce_eager"]:
        lines += [
            Line(
                API, "vllm.py:1055",
                "Enforce eager set, disabling torch.compile and CUDAGraphs. This is equivalent to setting "
                "-cc.mode=none -cc.cudagraph_mode=none", "WARNING",
            ),
            Line(API, "vllm.py:1273", "Cudagraph is disabled under eager mode"),
        ]  # fmt: skip
    return lines


def engine_config(s: ServeSettings) -> Line:
    """The engine's configuration line, cut to the fields that the campaign reads."""
    mode = "VLLM_COMPILE: 3" if s.compiled else "NONE: 0"
    values = {"NONE": 0, "PIECEWISE": 1, "FULL": 2, "FULL_DECODE_ONLY": (2, 0), "FULL_AND_PIECEWISE": (2, 1)}
    graphs = f"{s.graph_mode}: {values[s.graph_mode]}"
    sizes = list(s.capture_sizes)
    return Line(
        CORE, "core.py:113",
        f"Initializing a V1 LLM engine (v0.23.0) with config: model='{s.args['model']}', speculative_config=None, "
        f"tokenizer='{s.args['tokenizer'] or s.args['model']}', dtype=torch.{s.args['dtype']}, "
        f"max_seq_len={s.args['max_model_len']}, load_format={s.args['load_format'] or 'auto'}, tensor_parallel_size=1, "
        f"quantization=None, enforce_eager={s.args['enforce_eager']}, kv_cache_dtype=auto, device_config=cuda, "
        f"seed={s.args['seed']}, served_model_name={s.served_name}, "
        f"enable_prefix_caching={s.args['enable_prefix_caching']}, enable_chunked_prefill=True, pooler_config=None, "
        f"compilation_config={{'mode': <CompilationMode.{mode}>, 'backend': 'inductor', "
        f"'custom_ops': ['{'none' if s.compiled else 'all'}'], 'cudagraph_mode': <CUDAGraphMode.{graphs}>, "
        f"'cudagraph_num_of_warmups': {int(bool(sizes))}, 'cudagraph_capture_sizes': {sizes}, "
        f"'max_cudagraph_capture_size': {sizes[-1] if sizes else 0}}}",
    )  # fmt: skip


def start_phases(s: ServeSettings) -> Iterator[tuple[str, float, list[Line | Raw]]]:
    """(phase, seconds on the card, lines at its end) up to the moment the server answers."""
    yield "imports", 8.0, banner(s)
    yield "engine core", 16.0, [engine_config(s)]
    yield "device", 2.0, [
        Line(CORE, "parallel_state.py:1568", "world_size=1 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:0 backend=nccl"),
        Line(CORE, "topk_topp_sampler.py:39", "FlashInfer top-p/top-k sampling disabled via VLLM_USE_FLASHINFER_SAMPLER=0."),
        Line(CORE, "gpu_model_runner.py:5092", f"Starting to load model {s.args['model']}..."),
        Line(CORE, "cuda.py:378", "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'TRITON_ATTN', 'FLEX_ATTENTION']."),
        Line(CORE, "flash_attn.py:636", "Using FlashAttention version 3"),
    ]  # fmt: skip
    weights = 0.0 if s.args["load_format"] == "dummy" else s.shape.weights_gib / 5
    load: list[Line | Raw] = [Line(CORE, "default_loader.py:397", f"Loading weights took {weights:.2f} seconds")] if weights else []
    seconds = weights + 1.1
    yield "load", seconds, [
        *load,
        Line(CORE, "gpu_model_runner.py:5187", f"Model loading took {s.shape.weights_gib} GiB memory and {seconds:.6f} seconds"),
    ]
    compile_s = 0.0
    if s.compiled:
        compile_s, lines = _compile(s)
        yield "compile", compile_s, lines
    yield "profile", 6.0, [Line(CORE, "monitor.py:81", "Initial profiling/warmup run took 1.07 s")] if s.compiled else []
    graphs = s.graphs
    count = sum(graphs.values())
    estimate = count * s.shape.graph_estimate_gib
    largest = s.capture_sizes[-1] if count else 0
    modes = ", ".join(f"{mode}={n} (largest={largest})" for mode, n in graphs.items())
    if count:
        yield "graph memory", 2.3, [
            Line(CORE, "gpu_model_runner.py:6412", f"Profiling CUDA graph memory: {modes}"),
            Line(CORE, "gpu_model_runner.py:6517", f"Estimated CUDA graph memory: {estimate:.2f} GiB total"),
        ]
    yield "kv cache", 0.5, _kv_lines(s, estimate if count else None)
    captured = count * s.shape.capture_s
    for mode, n in graphs.items():
        text = f"Capturing CUDA graphs ({CAPTURE_LABELS[mode]}): 100%|██████████| {n}/{n} [00:{n * s.shape.capture_s:02.0f}<00:00]"
        yield "capture", n * s.shape.capture_s, [Raw(text)]
    actual = count * s.shape.graph_actual_gib
    ready = [Line(CORE, "jit_monitor.py:54", "Kernel JIT monitor activated — Triton JIT compilations during inference will be logged as warnings.")]
    if count:
        share = (actual - estimate) / actual * 100
        ready[:0] = [
            Line(CORE, "gpu_model_runner.py:6585", f"Graph capturing finished in {captured:.0f} secs, took {actual:.2f} GiB"),
            Line(
                CORE, "gpu_worker.py:639",
                f"CUDA graph pool memory: {round(actual, 2)} GiB (actual), {round(estimate, 2)} GiB (estimated), "
                f"difference: {round(actual - estimate, 2)} GiB ({share:.1f}%).",
            ),
        ]  # fmt: skip
    elif s.compiled:
        ready[:0] = [Line(
            CORE, "gpu_model_runner.py:6527",
            "Skipping CUDA graph capture. To turn on CUDA graph capture, ensure `cudagraph_mode` was not manually set to `NONE`",
            "WARNING",
        )]  # fmt: skip
    total = f"init engine (profile, create kv cache, warmup model) took {compile_s + 6.5 + captured + 2.3 * bool(count):.2f} s"
    ready.append(
        Line(CORE, "core.py:306", f"{total} (compilation: {compile_s:.2f} s)") if s.compiled else Line(CORE, "core.py:313", total)
    )
    yield "warm-up", 0.5, list(ready)
    host = s.args["host"] or "0.0.0.0"
    yield "api server", 1.0, [
        Line(API, "api_server.py:579", "Supported tasks: ['generate']"),
        Line(API, "api_server.py:583", f"Starting vLLM server on http://{host}:{s.args['port']}"),
        Line(API, "launcher.py:37", "Available routes are:"),
        *(Line(API, "launcher.py:46", f"Route: {path}, Methods: {methods}") for path, methods in ROUTES),
        Raw(f"INFO:     Started server process [{os.getpid()}]"),
        Raw("INFO:     Waiting for application startup."),
    ]


def _compile(s: ServeSettings) -> tuple[float, list[Line | Raw]]:
    """Compile cache as the engine keeps it under VLLM_CACHE_ROOT: cold the first time, then loaded."""
    cache = Path(os.environ.get("VLLM_CACHE_ROOT") or Path.home() / ".cache/vllm-stand-in") / "torch_compile_cache"
    saved = cache / "torch_aot_compile" / s.fingerprint / "rank_0_0" / "model"
    ranges = f"(1, {s.args['max_num_batched_tokens']})"
    warm = saved.exists()
    total = s.shape.compile_warm_s if warm else s.shape.compile_cold_s
    lines: list[Line | Raw] = [
        Line(CORE, "backends.py:1089", f"Using cache directory: {cache}/{s.fingerprint[:10]}/rank_0_0/backbone for vLLM's torch.compile"),
        Line(CORE, "backends.py:1148", f"Dynamo bytecode transform time: {total * (0.6 if warm else 0.31):.2f} s"),
    ]
    if warm:
        took = f"from the cache, took {total * 0.33:.3f} s"
        lines += [
            Line(CORE, "backends.py:292", f"Directly load the compiled graph(s) for compile range {ranges} {took}"),
            Line(CORE, "decorators.py:311", f"Directly load AOT compilation from path {saved}"),
        ]
    else:
        saved.parent.mkdir(parents=True, exist_ok=True)
        saved.touch()
        lines += [
            Line(CORE, "backends.py:378", f"Cache the graph of compile range {ranges} for later use"),
            Line(CORE, "backends.py:393", f"Compiling a graph for compile range {ranges} takes {total * 0.41:.2f} s"),
            Line(CORE, "decorators.py:708", f"saved AOT compiled function to {saved}"),
        ]
    return total, [*lines, Line(CORE, "monitor.py:53", f"torch.compile took {total:.2f} s in total")]


def _kv_lines(s: ServeSettings, estimate_gib: float | None) -> list[Line | Raw]:
    lines: list[Line | Raw] = [Line(CORE, "gpu_worker.py:480", f"Available KV cache memory: {round(s.kv_gib, 2)} GiB")]
    if estimate_gib is not None:
        now = s.args["gpu_memory_utilization"]
        share = estimate_gib / 79.18
        lines.append(Line(
            CORE, "gpu_worker.py:495",
            f"CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization={now:.4f} "
            f"is equivalent to --gpu-memory-utilization={now - share:.4f} without CUDA graph memory profiling. To maintain the "
            f"same effective KV cache size as before, increase --gpu-memory-utilization to {now + share:.4f}. To disable, set "
            "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0.",
        ))  # fmt: skip
    override = s.args["num_gpu_blocks_override"]
    if override:
        text = f"Overriding num_gpu_blocks={s.natural_blocks} with num_gpu_blocks_override={override}"
        lines.append(Line(CORE, "kv_cache_utils.py:2035", text))
    tokens, limit = s.scheduler.num_gpu_blocks * s.scheduler.block_size, s.args["max_model_len"]
    return [
        *lines,
        Line(CORE, "kv_cache_utils.py:1744", f"GPU KV cache size: {tokens:,} tokens"),
        Line(CORE, "kv_cache_utils.py:1745", f"Maximum concurrency for {limit:,} tokens per request: {tokens / limit:.2f}x"),
    ]


def failure(error: str) -> list[Line | Raw]:
    """How the engine reports an error at start."""
    core = not error.startswith("Value error")
    root = f"EngineCore failed to start.\nTraceback (most recent call last):\n{error}"
    lines: list[Line | Raw] = [Line(CORE, "core.py:1165", root, "ERROR")] if core else []
    last = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    validation = [Raw("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"), Raw(f"  {error}")]
    return [*lines, Raw("Traceback (most recent call last):"), *([Raw(last)] if core else validation)]


def graph_table(s: ServeSettings, counts: Counter[tuple[int, int, str]]) -> Line:
    """--cudagraph-metrics: steps since the last table by unpadded and padded tokens and runtime mode."""
    rows = [
        "**CUDAGraph Config Settings:**", "", f"- Mode: {s.graph_mode}", f"- Capture sizes: {list(s.capture_sizes)}", "",
        "**CUDAGraph Stats:**", "", "| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |",
        "|-----------------|---------------|--------------|--------------|-------|",
    ]  # fmt: skip
    for (unpadded, padded, mode), count in counts.most_common():
        rows.append(f"| {unpadded:<15} | {padded:<13} | {padded - unpadded:<12} | {mode:<12} | {count:<5} |")
    return Line(API, "cuda_graph.py:123", "\n".join([*rows, ""]))


SHUTDOWN: tuple[Line | Raw, ...] = (
    Line(CORE, "core.py:1178", "[shutdown] EngineCore: trigger received signal=SIGTERM"),
    Line(API, "launcher.py:100", "[shutdown] API server: shutdown triggered"),
    Line(API, "launcher.py:116", "[shutdown] API server: stopping engine client mode=abort timeout=0s"),
    Line(CORE, "core.py:1191", "[shutdown] EngineCore: exiting busy loop"),
    Line(API, "launcher.py:149", "[shutdown] API server: shutting down FastAPI HTTP server"),
    Raw("INFO:     Shutting down"),
    Raw("INFO:     Waiting for application shutdown."),
    Raw("INFO:     Application shutdown complete."),
)
