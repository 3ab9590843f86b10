"""Outcomes of a bench run and the result document, with the keys of `vllm bench serve` in their order."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


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

    @property
    def latency(self) -> float:
        return self.ttft + sum(self.itls)


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Linear interpolation between order statistics; 0 for no values, as the engine's client writes it."""
    if not ordered:
        return 0.0
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (at - low)


def _buckets(good: Sequence[Outcome]) -> dict[str, Any]:
    """Peaks over buckets of one second, as the engine's client counts them."""
    begin = min((out.start for out in good), default=0.0)
    tokens: Counter[int] = Counter()
    concurrent: Counter[int] = Counter()
    for out in good:
        at = out.start + out.ttft - begin
        for gap in (0.0, *out.itls):
            at += gap
            tokens[int(at)] += 1
        concurrent.update(range(int(out.start - begin), int(out.start - begin + out.latency) + 1))
    peaks = (float(max(tokens.values(), default=0)), max(concurrent.values(), default=0))
    return dict(zip(("max_output_tokens_per_s", "max_concurrent_requests"), peaks, strict=True))


def result_document(args: Namespace, outcomes: Sequence[Outcome], duration_s: float) -> dict[str, Any]:
    """The result file's content. Failed requests are counted and their figures left out of the statistics."""
    good = [out for out in outcomes if out.success]
    inputs, outputs = sum(out.input_tokens for out in good), sum(out.output_tokens for out in good)
    result: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": args.model,
        "tokenizer_id": args.tokenizer or args.model,
        "num_prompts": len(outcomes),
        **dict(pair.split("=", 1) for pair in args.metadata),
        "request_rate": args.request_rate if math.isfinite(args.request_rate) else "inf",
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        "duration": duration_s,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / duration_s,
        "request_goodput": None,
        "output_throughput": outputs / duration_s,
        "total_token_throughput": (inputs + outputs) / duration_s,
    }
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
    result |= {**_buckets(good), "rtfx": 0.0}
    series = {
        "ttft": [out.ttft for out in good],
        "tpot": [sum(out.itls) / (out.output_tokens - 1) for out in good if out.output_tokens > 1],
        "itl": [gap for out in good for gap in out.itls],
        "e2el": [out.latency for out in good],
    }
    for name in args.percentile_metrics.split(","):
        values = sorted(value * 1000 for value in series[name])
        mean = math.fsum(values) / max(len(values), 1)
        variance = math.fsum((value - mean) ** 2 for value in values) / max(len(values), 1)
        result[f"mean_{name}_ms"] = mean
        result[f"median_{name}_ms"] = _percentile(values, 50)
        result[f"std_{name}_ms"] = math.sqrt(variance)
        for text in args.metric_percentiles.split(","):
            result[f"p{float(text):g}_{name}_ms"] = _percentile(values, float(text))
    return result
