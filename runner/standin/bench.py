"""The face of `vllm bench serve`: random prompts, a closed loop, the result file with the engine's keys.

Hold-back: with a ready-check timeout above 0 it prints `campaign: ready <CLOCK_MONOTONIC ns>` when its prompts are
built, then waits for one byte on stdin; the end of stdin ends it without a run (exit 1).
"""

import asyncio
import json
import math
import random
import re
import sys
import time
import traceback
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median, pstdev, quantiles
from typing import Any

from runner.standin.http import read_head
from runner.standin.settings import VllmParser

VOCABULARY = 1000
USAGE = re.compile(rb'"usage":\{"prompt_tokens":(\d+),"total_tokens":\d+,"completion_tokens":(\d+)')
FLAGS = {
    "backend": "openai", "host": "127.0.0.1", "port": 8000, "model": "", "tokenizer": "",
    "dataset-name": "random", "random-input-len": 1024, "random-output-len": 128, "random-range-ratio": 0.0,
    "num-prompts": 1000, "max-concurrency": 1 << 20, "request-rate": math.inf, "seed": 0, "temperature": 0.0,
    "num-warmups": 0, "ready-check-timeout-sec": 0, "result-dir": ".", "result-filename": "bench.json",
    "request-id-prefix": "bench-",
    # in effect without being given
    "ignore-eos": True, "save-result": True, "save-detailed": True, "disable-tqdm": True,
}  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """One request as the client saw it; moments are time.perf_counter() seconds."""

    input_tokens: int
    start: float = 0.0
    ttft: float = 0.0
    itls: list[float] = field(default_factory=list)
    output_tokens: int = 0
    error: str = ""
    success: bool = False


async def _run(args: Namespace, prompts: list[tuple[str, int, int]]) -> tuple[list[Outcome], float]:
    """Warm-ups, then every prompt in order; outcomes and the duration in seconds."""
    places = asyncio.Semaphore(args.max_concurrency)
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def request(index: int, name: str) -> Outcome:
        """Send prompt `index` when a place is free; an error is in the outcome, never raised."""
        prompt, input_tokens, output_tokens = prompts[index]
        body = json.dumps({
            "model": args.model, "prompt": prompt, "temperature": args.temperature, "ignore_eos": True,
            "max_tokens": output_tokens, "stream": True, "stream_options": {"include_usage": True},
        })  # fmt: skip
        head = f"host: {args.host}\r\ncontent-length: {len(body)}\r\nx-request-id: {args.request_id_prefix}{name}"
        async with places:
            out = Outcome(input_tokens, time.perf_counter())
            try:
                reader, writer = idle.pop() if idle else await asyncio.open_connection(args.host, args.port)
                writer.write(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
                await _receive(reader, out)
                idle.append((reader, writer))
            except (OSError, EOFError):
                out.error, out.success, out.output_tokens = traceback.format_exc(), False, 0
            return out

    await asyncio.gather(*(request(0, f"warmup-{i}") for i in range(args.num_warmups)))
    tasks, gaps = [], random.Random(args.seed)
    begin = due = time.perf_counter()
    for index in range(len(prompts)):
        if math.isfinite(args.request_rate) and index:
            due += gaps.expovariate(args.request_rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(request(index, str(index))))
    return await asyncio.gather(*tasks), time.perf_counter() - begin


async def _receive(reader: asyncio.StreamReader, out: Outcome) -> None:
    """Take a response apart as it arrives: a moment for each token's event, the usage at the end."""
    first, headers = await read_head(reader)
    _, status, reason = first.split(" ", 2)
    if status != "200":
        await reader.readexactly(int(headers["content-length"]))
        out.error = reason
        return
    last, rest = out.start, b""
    while not rest.endswith(b"0\r\n\r\n"):
        data = await reader.read(1 << 16)
        if not data:
            raise ConnectionResetError("Server disconnected")
        now = time.perf_counter()
        complete, _, rest = (rest + data).rpartition(b"\n\n")
        for _ in range(complete.count(b'"text":')):
            if out.ttft:
                out.itls.append(now - last)
            else:
                out.ttft = now - out.start
            last = now
        if usage := USAGE.search(complete):
            out.input_tokens, out.output_tokens, out.success = int(usage[1]), int(usage[2]), True


def _prompts(args: Namespace) -> list[tuple[str, int, int]]:
    """(text, input tokens, output tokens); a token is a word, lengths are uniform within the range ratio."""
    draw, ratio = random.Random(args.seed), args.random_range_ratio
    words = [f"w{i}" for i in range(VOCABULARY)]

    def length(mean: int) -> int:
        return draw.randint(max(1, math.floor(mean * (1 - ratio))), math.ceil(mean * (1 + ratio)))

    prompts = []
    for _ in range(args.num_prompts):
        size, offset = length(args.random_input_len), draw.randrange(VOCABULARY)
        text = " ".join((words * (2 + size // VOCABULARY))[offset : offset + size])
        prompts.append((text, size, length(args.random_output_len)))
    return prompts


def result_document(args: Namespace, outcomes: Sequence[Outcome], duration_s: float) -> dict[str, Any]:
    """The result file, with the engine's keys in their order. Failed requests are counted and left out of the
    statistics, which are 0 without a successful one."""
    good = [out for out in outcomes if out.success]
    inputs, outputs = sum(out.input_tokens for out in good), sum(out.output_tokens for out in good)
    begin = min((out.start for out in good), default=0.0)
    tokens, present = Counter[int](), Counter[int]()  # tokens, and requests present, by second
    for out in good:
        moments = list(accumulate(out.itls, initial=out.start - begin + out.ttft))
        tokens.update(map(int, moments))
        present.update(range(int(out.start - begin), int(moments[-1]) + 1))
    result: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"), "endpoint_type": args.backend, "backend": args.backend,
        "label": None, "model_id": args.model, "tokenizer_id": args.tokenizer or args.model,
        "num_prompts": len(outcomes),
        "request_rate": args.request_rate if math.isfinite(args.request_rate) else "inf",
        "burstiness": 1.0, "max_concurrency": args.max_concurrency, "duration": duration_s,
        "completed": len(good), "failed": len(outcomes) - len(good),
        "total_input_tokens": inputs, "total_output_tokens": outputs,
        "request_throughput": len(good) / duration_s, "request_goodput": None,
        "output_throughput": outputs / duration_s, "total_token_throughput": (inputs + outputs) / duration_s,
        "input_lens": [out.input_tokens for out in outcomes],
        "output_lens": [out.output_tokens for out in outcomes],
        "ttfts": [out.ttft for out in outcomes], "itls": [out.itls for out in outcomes],
        "start_times": [out.start for out in outcomes],
        "generated_texts": [""] * len(outcomes), "errors": [out.error for out in outcomes],
        "max_output_tokens_per_s": float(max(tokens.values(), default=0)),
        "max_concurrent_requests": max(present.values(), default=0), "rtfx": 0.0,
    }  # fmt: skip
    series = {
        "ttft": [out.ttft for out in good],
        "tpot": [sum(out.itls) / (out.output_tokens - 1) for out in good if out.output_tokens > 1],
        "itl": [gap for out in good for gap in out.itls],
    }
    for name, seconds in series.items():
        values = [1000 * value for value in seconds] or [0.0]
        result[f"mean_{name}_ms"], result[f"median_{name}_ms"] = fmean(values), median(values)
        result[f"std_{name}_ms"] = pstdev(values)
        several = values if len(values) > 1 else 2 * values
        result[f"p99_{name}_ms"] = quantiles(several, n=100, method="inclusive")[-1]
    return result


def bench(argv: list[str]) -> int:
    """Run one benchmark. Failed requests are counted, not an error: the exit status is 0, as with the engine's."""
    args = VllmParser(FLAGS).parse_args(argv)
    prompts = _prompts(args)
    print("SIMULATED: the stand-in's bench client, not vLLM's.")
    if args.ready_check_timeout_sec > 0:
        print(f"campaign: ready {time.monotonic_ns()}", flush=True)
        if not sys.stdin.buffer.read(1):
            return 1
    result = result_document(args, *asyncio.run(_run(args, prompts)))
    for key in ("completed", "failed", "duration", "output_throughput"):
        print(f"{key}: {result[key]:.6g}")
    Path(args.result_dir, args.result_filename).write_text(json.dumps(result))
    return 0
