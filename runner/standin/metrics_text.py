"""The text of /metrics under the engine's names."""

from __future__ import annotations

import time
from collections import defaultdict

from runner.standin.settings import ServeSettings

GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
COUNTERS = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "prompt_tokens_cached": "Number of cached prompt tokens (local + external).",
    "generation_tokens": "Number of generation tokens processed.",
}
HISTOGRAMS = {
    "request_prompt_tokens": "Number of prefill tokens processed.",
    "request_generation_tokens": "Number of generation tokens processed.",
    "iteration_tokens_total": "Histogram of number of tokens per engine_step.",
    "time_to_first_token_seconds": "Histogram of time to first token in seconds.",
    "inter_token_latency_seconds": "Histogram of inter-token latency in seconds.",
    "request_time_per_output_token_seconds": "Histogram of time_per_output_token_seconds per request.",
    "e2e_request_latency_seconds": "Histogram of e2e request latency in seconds.",
    "request_prefill_kv_computed_tokens": "Histogram of new KV tokens computed during prefill.",
}
REASONS = ("stop", "length", "abort", "error", "repetition")


class MetricValues:
    """Counters, gauges and histogram sums; a name that is not listed above is a mistake of this package."""

    def __init__(self) -> None:
        self.started = time.time()
        self.gauges = dict.fromkeys(GAUGES, 0.0)
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        self.finished: defaultdict[str, int] = defaultdict(int)
        self.sums = dict.fromkeys(HISTOGRAMS, 0.0)
        self.counts = dict.fromkeys(HISTOGRAMS, 0)

    def observe(self, name: str, value: float, times: int = 1) -> None:
        self.sums[name] += value * times
        self.counts[name] += times

    def text(self, s: ServeSettings) -> bytes:
        label = f'engine="0",model_name="{s.served_name}"'
        out: list[str] = []

        def family(name: str, kind: str, text: str, samples: list[tuple[str, str, float]]) -> None:
            suffix = "_total" if kind == "counter" else ""
            out.extend([f"# HELP vllm:{name}{suffix} {text}", f"# TYPE vllm:{name}{suffix} {kind}"])
            out.extend(
                f"vllm:{name}{suffix}{part}{{{label}{extra}}} {float(value)}"
                for part, extra, value in samples
            )
            if kind != "gauge":
                out.extend([f"# HELP vllm:{name}_created {text}", f"# TYPE vllm:{name}_created gauge"])
                out.append(f"vllm:{name}_created{{{label}}} {self.started}")

        for name, text in GAUGES.items():
            family(name, "gauge", text, [("", "", self.gauges[name])])
        for name, text in COUNTERS.items():
            family(name, "counter", text, [("", "", self.counters[name])])
        computed = self.counters["prompt_tokens"]
        sources = [("local_compute", computed), ("local_cache_hit", 0.0), ("external_kv_transfer", 0.0)]
        family(
            "prompt_tokens_by_source", "counter", "Number of prompt tokens by source.",
            [("", f',source="{source}"', value) for source, value in sources],
        )  # fmt: skip
        family(
            "request_success", "counter", "Count of successfully processed requests.",
            [("", f',finished_reason="{reason}"', self.finished[reason]) for reason in REASONS],
        )  # fmt: skip
        for name, text in HISTOGRAMS.items():
            count = self.counts[name]
            family(
                name,
                "histogram",
                text,
                [("_bucket", ',le="+Inf"', count), ("_count", "", count), ("_sum", "", self.sums[name])],
            )
        info = {
            "block_size": s.scheduler.block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": s.args["enable_prefix_caching"],
            "engine": 0,
            "gpu_memory_utilization": s.args["gpu_memory_utilization"],
            "kv_cache_memory_bytes": s.args["kv_cache_memory_bytes"],
            "num_gpu_blocks": s.scheduler.num_gpu_blocks,
            "num_gpu_blocks_override": s.args["num_gpu_blocks_override"],
        }
        labels = ",".join(f'{key}="{value}"' for key, value in info.items())
        out.append("# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig")
        out.extend(["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{labels}}} 1.0", ""])
        return "\n".join(out).encode()
