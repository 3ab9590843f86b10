"""Gates on the load: did the client do the work that was asked for, and does it add up."""

import math

from analysis.gate import Evidence, Seen


def no_successful_requests(e: Evidence) -> Seen:
    """The client completed at least one request and got tokens for it."""
    if e.measured and e.bench is None:
        yield "no result file of the client"
    elif e.measured and e.bench:
        tokens = sum(r.output_tokens for r in e.bench.requests)
        if not (e.bench.completed and tokens):
            yield f"completed {e.bench.completed}, failed {e.bench.failed}, output tokens {tokens}"


def failed_requests(e: Evidence) -> Seen:
    """No request failed: refusing requests makes the rest faster."""
    errors = [r.error for r in e.bench.requests if r.error] if e.bench else []
    if e.bench and (e.bench.failed or errors):
        last_lines = [text.strip().splitlines()[-1] for text in errors[:1] if text.strip()]
        first = "".join(f"; first error: {line[:200]}" for line in last_lines)
        yield f"{max(e.bench.failed, len(errors))} of {len(e.bench.requests)} requests failed{first}"


def request_count_mismatch(e: Evidence) -> Seen:
    """Completed plus failed requests, and rows, equal the prompts asked for."""
    if b := e.bench:
        wanted = b.scalars["num_prompts"] if e.record.num_prompts is None else e.record.num_prompts
        if not b.completed + b.failed == wanted == len(b.requests):
            yield f"{wanted} prompts, completed {b.completed} + failed {b.failed}, {len(b.requests)} rows"


def short_output(e: Evidence) -> Seen:
    """Every request got as many tokens as it asked for."""
    lengths = [(r.request, r.output_tokens) for r in e.served]
    yield from _off_length(lengths, e.record.output_tokens, e.record.range_ratio)
    asked, got = e.counted("vllm:request_params_max_tokens_sum"), e.counted("vllm:generation_tokens_total")
    if e.measured and asked is not None and got is not None and asked != got:
        yield f"the engine was asked for {asked} tokens and generated {got}"


def input_length_drift(e: Evidence) -> Seen:
    """Every prompt has the length asked for, as the engine counts it."""
    lengths = [(r.request, r.input_tokens) for r in e.served]
    yield from _off_length(lengths, e.record.input_tokens, e.record.range_ratio)


def zero_or_nonfinite_latency(e: Evidence) -> Seen:
    """Every request's times are finite and positive, inter-token times not negative."""
    for row in e.served:
        times = (row.start_s, row.ttft_s, row.latency_s)
        if not all(map(math.isfinite, times)) or row.ttft_s <= 0 or row.itl_least_us < 0:
            yield f"request {row.request}: start {row.start_s}, ttft {row.ttft_s}, latency {row.latency_s} s"


def token_sum_mismatch(e: Evidence) -> Seen:
    """The client's token totals equal the sums over its requests and what the engine counted."""
    if e.bench is None or not e.bench.requests:
        return
    first = e.bench.requests[0]  # warm-ups repeat it
    warmups = None if e.bench.failed else e.record.warmup_requests
    for total, counter, own, warm in (
        ("total_output_tokens", "generation_tokens", sum(r.output_tokens for r in e.served), first.output_tokens),
        ("total_input_tokens", "prompt_tokens", sum(r.input_tokens for r in e.served), first.input_tokens),
    ):
        if (said := e.bench.scalars.get(total)) != own:
            yield f"{total} {said}, sum over requests {own}"
        engine = e.counted(f"vllm:{counter}_total")
        if warmups is not None and engine is not None and engine != own + warmups * warm:
            yield f"vllm:{counter}_total grew by {engine}, the client saw {own} and {warmups} warm-ups of {warm}"


def duration_mismatch(e: Evidence) -> Seen:
    """The client's duration is the time from its first request to its last token."""
    if e.bench and e.bench.window_s:
        duration_s, window_s = e.bench.duration_s, e.bench.window_s[1] - e.bench.window_s[0]
        rate = e.told("request_rate")  # "inf", or requests/s: then the first one may come late
        allowed_s = 0.1 + 0.01 * window_s + (10 / rate if rate and rate > 0 else 0)
        if duration_s <= 0 or abs(duration_s - window_s) > allowed_s:
            yield f"duration {duration_s:.3f} s, first request to last token {window_s:.3f} s"


def files_disagree(e: Evidence) -> Seen:
    """run.json and the client's own summary tell what the requests and counters tell."""
    t, blocks = e.record.timeline, e.after.num_gpu_blocks if e.after else None
    window = e.bench.window_s if e.bench else None
    if window and (t.window_begin_ns, t.window_end_ns) != (round(window[0] * 1e9), round(window[1] * 1e9)):
        yield f"window of the requests {window[0]:.3f} to {window[1]:.3f} s, in run.json another"
    if blocks is not None and blocks != e.record.num_gpu_blocks:
        yield f"{blocks} KV blocks in /metrics, {e.record.num_gpu_blocks} in run.json"
    natural = (e.log.num_gpu_blocks_natural if e.log.num_gpu_blocks_override else blocks) if e.log else None
    if e.record.num_gpu_blocks_natural != natural and None not in (e.record.num_gpu_blocks_natural, natural):
        yield f"{natural} KV blocks found by the engine, {e.record.num_gpu_blocks_natural} in run.json"
    said = e.told("output_throughput")
    if e.bench and e.bench.duration_s > 0 and said is not None:
        own = sum(r.output_tokens for r in e.served) / e.bench.duration_s
        if abs(said - own) > 0.001 * own:
            yield f"output_throughput {said:.2f} tokens/s, the requests give {own:.2f}"


def prefix_cache_hits(e: Evidence) -> Seen:
    """No prompt was served from the prefix cache."""
    if e.after and (hits := e.after.value("vllm:prefix_cache_hits_total")):
        queries = e.after.value("vllm:prefix_cache_queries_total") or 0
        yield f"{hits:.0f} of {queries:.0f} prompt tokens came from the cache"


def _off_length(lengths: list[tuple[int, int]], mean: int | None, ratio: float | None) -> Seen:
    """Requests outside the lengths that the random data set draws (benchmarks/datasets/utils.py)."""
    if mean is not None:
        low, high = max(1, math.floor(mean * (1 - (ratio or 0)))), math.ceil(mean * (1 + (ratio or 0)))
        wrong = [(request, length) for request, length in lengths if not low <= length <= high]
        asked = str(low) if low == high else f"{low} to {high}"
        for request, length in wrong:
            yield f"request {request} has {length} tokens, asked for {asked}; {len(wrong)} such requests"
