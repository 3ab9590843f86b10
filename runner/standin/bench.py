"""The face of `vllm bench serve`: random prompts, a closed loop, the result file with the engine's keys.

Hold-back: with a ready-check timeout above 0 it prints `campaign: ready` when its prompts are built, then waits for one
byte on stdin; the end of stdin ends it without a run (exit 1).
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import statistics
import sys
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from runner.standin.http import ClientConnection, connect
from runner.standin.settings import VllmParser

VOCABULARY = 1000
USAGE = re.compile(rb'"usage":\{"prompt_tokens":(\d+),"total_tokens":\d+,"completion_tokens":(\d+)')


def _parser() -> VllmParser:
    parser = VllmParser(prog="vllm", allow_abbrev=False)
    add = parser.add_argument
    for name, default in (
        ("backend", "openai"), ("host", "127.0.0.1"), ("endpoint", "/v1/completions"), ("model", None), ("tokenizer", None),
        ("served-model-name", None), ("dataset-name", "random"), ("random-range-ratio", "0.0"), ("label", None),
        ("percentile-metrics", "ttft,tpot,itl"), ("metric-percentiles", "99"), ("result-dir", "."), ("result-filename", None),
        ("request-id-prefix", f"bench-{uuid.uuid4().hex[:8]}-"), ("tokenizer-mode", "auto"),
    ):  # fmt: skip
        add(f"--{name}", default=default)
    for name, number in (
        ("port", 8000), ("random-input-len", 1024), ("random-output-len", 128), ("num-prompts", 1000), ("seed", 0),
        ("num-warmups", 0), ("ready-check-timeout-sec", 0), ("max-concurrency", None),
    ):  # fmt: skip
        add(f"--{name}", type=int, default=number)
    for name, value in (("request-rate", math.inf), ("burstiness", 1.0), ("temperature", None)):
        add(f"--{name}", type=float, default=value)
    for name in ("ignore-eos", "save-result", "save-detailed", "disable-tqdm", "trust-remote-code"):
        add(f"--{name}", action="store_true")
    add("--metadata", nargs="*", default=[])
    return parser


@dataclass(slots=True)
class _Outcome:
    input_tokens: int
    start: float = 0.0
    ttft: float = 0.0
    latency: float = 0.0
    itls: list[float] = field(default_factory=list)
    output_tokens: int = 0
    error: str = ""
    success: bool = False


class _Client:
    def __init__(self, args: Any, prompts: list[tuple[str, int, int]]) -> None:
        self._args, self._prompts = args, prompts
        self._idle: list[ClientConnection] = []

    async def request(self, index: int, request_id: str) -> _Outcome:
        prompt, input_tokens, output_tokens = self._prompts[index]
        args = self._args
        out = _Outcome(input_tokens)
        body = {
            "model": args.served_model_name or args.model, "prompt": prompt, "repetition_penalty": 1.0,
            "max_tokens": output_tokens, "logprobs": None, "stream": True, "stream_options": {"include_usage": True},
            "ignore_eos": True, **({} if args.temperature is None else {"temperature": args.temperature}),
        }  # fmt: skip
        out.start = last = time.perf_counter()
        buffer = b""

        def on_data(data: bytes) -> bool:
            nonlocal buffer, last
            buffer += data
            if not out.error and not buffer.startswith((b"HTTP/1.1 200", b"data", b"\r\n")) and b"\r\n\r\n" in buffer and last == out.start:
                out.error = buffer.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")[2].partition(" ")[2]
            if out.error:
                return True
            complete, found, rest = buffer.rpartition(b"\n\n")
            if found:
                buffer = rest
                for _ in range(complete.count(b'"text":')):
                    now = time.perf_counter()
                    if out.ttft:
                        out.itls.append(now - last)
                    else:
                        out.ttft = now - out.start
                    last = now
                usage = USAGE.search(complete)
                if usage:
                    out.input_tokens, out.output_tokens = int(usage[1]), int(usage[2])
                    out.success = True
            return out.success and rest.endswith(b"0\r\n\r\n")

        try:
            connection = self._idle.pop() if self._idle else await connect(args.host, args.port)
            data = json.dumps(body).encode()
            headers = {"host": f"{args.host}:{args.port}", "content-type": "application/json", "x-request-id": request_id}
            await connection.post(args.endpoint, headers, data, on_data)
            self._idle.append(connection)
        except OSError:
            out.error, out.success = traceback.format_exc(), False
        out.latency = last - out.start
        return out


async def _measure(args: Any, prompts: list[tuple[str, int, int]]) -> tuple[list[_Outcome], float]:
    client = _Client(args, prompts)
    limit = asyncio.Semaphore(args.max_concurrency or len(prompts))

    async def limited(index: int, request_id: str) -> _Outcome:
        async with limit:
            return await client.request(index, request_id)

    if args.num_warmups:
        print(f"Warming up with {args.num_warmups} requests...")
        await asyncio.gather(*(limited(0, f"{args.request_id_prefix}warmup-{i}") for i in range(args.num_warmups)))
    print("Starting main benchmark run...", flush=True)
    gaps = random.Random(args.seed)
    tasks = []
    begin = time.perf_counter()
    due = begin
    for index in range(len(prompts)):
        if math.isfinite(args.request_rate) and index:
            due += gaps.gammavariate(args.burstiness, 1 / (args.request_rate * args.burstiness))
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(limited(index, f"{args.request_id_prefix}{index}")))
    outcomes = list(await asyncio.gather(*tasks))
    return outcomes, time.perf_counter() - begin


def _prompts(args: Any) -> list[tuple[str, int, int]]:
    """(text, input tokens, output tokens); a token is a word, lengths are uniform within the range ratio."""
    ratio = json.loads(args.random_range_ratio)
    ratios = ratio if isinstance(ratio, dict) else {"input": ratio, "output": ratio}
    draw = random.Random(args.seed)
    words = [f"w{i}" for i in range(VOCABULARY)]

    def length(mean: int, spread: float) -> int:
        return draw.randint(max(1, math.floor(mean * (1 - spread))), math.ceil(mean * (1 + spread)))

    prompts = []
    for index in range(args.num_prompts):
        size = length(args.random_input_len, ratios["input"])
        offset = (draw.randrange(VOCABULARY) + index) % VOCABULARY
        text = " ".join((words * (2 + size // VOCABULARY))[offset : offset + size])
        prompts.append((text, size, length(args.random_output_len, ratios["output"])))
    return prompts


def _percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between order statistics; 0 for no values, as the engine's client writes it."""
    if not values:
        return 0.0
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _result(args: Any, outcomes: list[_Outcome], duration: float) -> dict[str, Any]:
    good = [out for out in outcomes if out.success]
    output = sum(out.output_tokens for out in good)
    total_input = sum(out.input_tokens for out in good)
    metadata = dict(pair.split("=", 1) for pair in args.metadata)
    result: dict[str, Any] = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"), "endpoint_type": args.backend, "backend": args.backend, "label": args.label,  # noqa: DTZ005
        "model_id": args.model, "tokenizer_id": args.tokenizer or args.model, "num_prompts": len(outcomes), **metadata,
        "request_rate": args.request_rate if math.isfinite(args.request_rate) else "inf", "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency, "duration": duration, "completed": len(good), "failed": len(outcomes) - len(good),
        "total_input_tokens": total_input, "total_output_tokens": output, "request_throughput": len(good) / duration,
        "request_goodput": None, "output_throughput": output / duration, "total_token_throughput": (total_input + output) / duration,
    }  # fmt: skip
    if args.save_detailed:
        result |= {
            "input_lens": [out.input_tokens for out in outcomes],
            "output_lens": [out.output_tokens if out.success else 0 for out in outcomes],
            "ttfts": [out.ttft for out in outcomes],
            "itls": [out.itls for out in outcomes],
            "start_times": [out.start for out in outcomes],
            "generated_texts": [""] * len(outcomes),
            "errors": [out.error for out in outcomes],
        }
    begin = min((out.start for out in good), default=0.0)
    tokens: Counter[int] = Counter()
    concurrent: Counter[int] = Counter()
    for out in good:
        at = out.start + out.ttft
        for gap in (0.0, *out.itls):
            at += gap
            tokens[int(at - begin)] += 1
        concurrent.update(range(int(out.start - begin), int(out.start + out.latency - begin) + 1))
    result |= {
        "max_output_tokens_per_s": float(max(tokens.values(), default=0)),
        "max_concurrent_requests": max(concurrent.values(), default=0),
        "rtfx": 0.0,
    }
    values = {
        "ttft": [out.ttft for out in good],
        "tpot": [(out.latency - out.ttft) / (out.output_tokens - 1) for out in good if out.output_tokens > 1],
        "itl": [gap for out in good for gap in out.itls],
        "e2el": [out.latency for out in good],
    }
    for name in args.percentile_metrics.split(","):
        series = [value * 1000 for value in values[name]]
        result[f"mean_{name}_ms"] = statistics.fmean(series) if series else 0.0
        result[f"median_{name}_ms"] = _percentile(series, 50)
        result[f"std_{name}_ms"] = statistics.pstdev(series) if series else 0.0
        for text in args.metric_percentiles.split(","):
            result[f"p{float(text):g}_{name}_ms"] = _percentile(series, float(text))
    return result


def bench(argv: list[str]) -> int:
    """Run one benchmark. Failed requests are counted, not an error: the exit status is 0, as the engine's client has it."""
    args = _parser().parse_args(argv)
    prompts = _prompts(args)
    print("SIMULATED: the stand-in's bench client, not vLLM's.\nStarting initial single prompt test run...")
    if args.ready_check_timeout_sec > 0:
        print("campaign: ready", flush=True)
        if not sys.stdin.buffer.read(1):
            return 1
    else:
        print("Skipping endpoint ready check.")
    outcomes, duration = asyncio.run(_measure(args, prompts))
    result = _result(args, outcomes, duration)
    print(f"{' Serving Benchmark Result ':=^50}")
    for label, key in (
        ("Successful requests:", "completed"), ("Failed requests:", "failed"), ("Benchmark duration (s):", "duration"),
        ("Total generated tokens:", "total_output_tokens"), ("Output token throughput (tok/s):", "output_throughput"),
    ):  # fmt: skip
        print(f"{label:<40} {result[key]:<10.6g}")
    print("=" * 50)
    if args.save_result:
        name = args.result_filename or f"{args.backend}-{args.num_prompts}-{result['date']}.json"
        path = Path(args.result_dir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
    return 0
