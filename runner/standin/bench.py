"""The face of `vllm bench serve`: random prompts, a closed loop, the result file with the engine's keys.

Hold-back: with a ready-check timeout above 0 it prints `campaign: ready` when its prompts are built, then
waits for one byte on stdin; the end of stdin ends it without a run (exit 1).
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import sys
import time
import traceback
import uuid
from argparse import Namespace
from pathlib import Path

from runner.standin.bench_result import Outcome, result_document
from runner.standin.http import ClientConnection, connect
from runner.standin.settings import VllmParser

VOCABULARY = 1000
USAGE = re.compile(rb'"usage":\{"prompt_tokens":(\d+),"total_tokens":\d+,"completion_tokens":(\d+)')
TEXT_FLAGS = {
    "backend": "openai", "host": "127.0.0.1", "endpoint": "/v1/completions", "model": None, "tokenizer": None,
    "served-model-name": None, "dataset-name": "random", "label": None, "random-range-ratio": "0.0",
    "percentile-metrics": "ttft,tpot,itl", "metric-percentiles": "99", "result-dir": ".",
    "result-filename": None, "request-id-prefix": None, "tokenizer-mode": "auto",
}  # fmt: skip
NUMBER_FLAGS = {
    "port": 8000, "random-input-len": 1024, "random-output-len": 128, "num-prompts": 1000, "seed": 0,
    "num-warmups": 0, "ready-check-timeout-sec": 0, "max-concurrency": None,
}  # fmt: skip


def _parser() -> VllmParser:
    parser = VllmParser(prog="vllm", allow_abbrev=False)
    for name, text in TEXT_FLAGS.items():
        parser.add_argument(f"--{name}", default=text)
    for name, number in NUMBER_FLAGS.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    for name, value in {"request-rate": math.inf, "burstiness": 1.0, "temperature": None}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    for name in ("ignore-eos", "save-result", "save-detailed", "disable-tqdm", "trust-remote-code"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--metadata", nargs="*", default=[])
    return parser


class _Reader:
    """Takes a response apart as it arrives: status, a moment for each token's event, the usage at the end."""

    def __init__(self, out: Outcome) -> None:
        self._out, self._last = out, out.start
        self._buffer, self._in_body = b"", False

    def __call__(self, data: bytes) -> bool:
        out = self._out
        self._buffer += data
        if not self._in_body:
            head, found, body = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return False
            status, _, reason = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")[2].partition(" ")
            out.error = "" if status == "200" else reason
            self._buffer, self._in_body = body, True
        complete, found, rest = self._buffer.rpartition(b"\n\n")
        if found:
            self._buffer = rest
            for _ in range(complete.count(b'"text":')):
                now = time.perf_counter()
                if out.ttft:
                    out.itls.append(now - self._last)
                else:
                    out.ttft = now - out.start
                self._last = now
            usage = USAGE.search(complete)
            if usage:
                out.input_tokens, out.output_tokens = int(usage[1]), int(usage[2])
                out.success = True
        return bool(out.error) or (out.success and rest.endswith(b"0\r\n\r\n"))


class _Client:
    def __init__(self, args: Namespace, prompts: list[tuple[str, int, int]]) -> None:
        self._args, self._prompts = args, prompts
        self._limit = asyncio.Semaphore(args.max_concurrency or max(len(prompts), 1))
        self._idle: list[ClientConnection] = []
        self._id_prefix = args.request_id_prefix or f"bench-{uuid.uuid4().hex[:8]}-"

    async def request(self, index: int, name: str) -> Outcome:
        """Send prompt `index` when a place is free; an error is in the outcome, never raised."""
        async with self._limit:
            args = self._args
            prompt, input_tokens, output_tokens = self._prompts[index]
            body = {
                "model": args.served_model_name or args.model, "prompt": prompt, "repetition_penalty": 1.0,
                "max_tokens": output_tokens, "logprobs": None, "stream": True,
                "stream_options": {"include_usage": True}, "ignore_eos": True,
            }  # fmt: skip
            if args.temperature is not None:
                body["temperature"] = args.temperature
            data = json.dumps(body).encode()
            headers = {"host": args.host, "x-request-id": f"{self._id_prefix}{name}"}
            out = Outcome(input_tokens, time.perf_counter())
            try:
                connection = self._idle.pop() if self._idle else await connect(args.host, args.port)
                await connection.post(args.endpoint, headers, data, _Reader(out))
                self._idle.append(connection)
            except OSError:
                out.error, out.success = traceback.format_exc(), False
            return out

    async def run(self) -> tuple[list[Outcome], float]:
        """Warm-ups, then every prompt in order; outcomes and the duration in seconds."""
        args = self._args
        if args.num_warmups:
            print(f"Warming up with {args.num_warmups} requests...")
            await asyncio.gather(*(self.request(0, f"warmup-{i}") for i in range(args.num_warmups)))
        print("Starting main benchmark run...", flush=True)
        gaps = random.Random(args.seed)
        tasks = []
        begin = due = time.perf_counter()
        for index in range(len(self._prompts)):
            if math.isfinite(args.request_rate) and index:
                due += gaps.gammavariate(args.burstiness, 1 / (args.request_rate * args.burstiness))
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self.request(index, str(index))))
        return list(await asyncio.gather(*tasks)), time.perf_counter() - begin


def _prompts(args: Namespace) -> list[tuple[str, int, int]]:
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


def bench(argv: list[str]) -> int:
    """Run one benchmark. Failed requests are counted, not an error: the exit status is 0, as the engine's
    client has it."""
    args = _parser().parse_args(argv)
    prompts = _prompts(args)
    print("SIMULATED: the stand-in's bench client, not vLLM's.\nStarting initial single prompt test run...")
    if args.ready_check_timeout_sec > 0:
        print("campaign: ready", flush=True)
        if not sys.stdin.buffer.read(1):
            return 1
    else:
        print("Skipping endpoint ready check.")
    client = _Client(args, prompts)
    result = result_document(args, *asyncio.run(client.run()))
    print(f"{' Serving Benchmark Result ':=^50}")
    for label, key in {
        "Successful requests:": "completed",
        "Failed requests:": "failed",
        "Benchmark duration (s):": "duration",
        "Total generated tokens:": "total_output_tokens",
        "Output token throughput (tok/s):": "output_throughput",
    }.items():
        print(f"{label:<40} {result[key]:<10.6g}")
    print("=" * 50)
    if args.save_result:
        name = args.result_filename or f"{args.backend}-{args.num_prompts}-{result['date']}.json"
        path = Path(args.result_dir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
    return 0
