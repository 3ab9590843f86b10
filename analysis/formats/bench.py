"""The result file of `vllm bench serve --save-result --save-detailed` (vLLM 0.23.0, benchmarks/serve.py).

One JSON object: scalars, and one list per request attribute. Times in the lists are seconds; `start_times` is
CLOCK_MONOTONIC. The client exits 0 even when no request succeeded: counts are judged by analysis.gates.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from analysis.formats.errors import FormatError

_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")
_REQUIRED = ("num_prompts", "completed", "failed", "duration")
_MAX_ITL_S = 2_000.0  # whole microseconds of one inter-token time stay a 32-bit integer


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request. `start_s`: CLOCK_MONOTONIC; `latency_s`: ttft + inter-token times; `error`: '' if none."""

    request: int
    start_s: float
    ttft_s: float
    latency_s: float
    input_tokens: int
    output_tokens: int
    itl_us: tuple[int, ...]
    error: str


@dataclass(frozen=True)
class BenchResult:
    """Scalars as the client wrote them, and its requests in the client's order."""

    scalars: dict[str, Any]
    requests: tuple[RequestRow, ...]

    @property
    def completed(self) -> int:
        return int(self.scalars["completed"])

    @property
    def failed(self) -> int:
        return int(self.scalars["failed"])

    @property
    def duration_s(self) -> float:
        return float(self.scalars["duration"])

    @property
    def window_s(self) -> tuple[float, float] | None:
        """(first request sent, last token received), monotonic s; None if no request produced tokens."""
        served = [r for r in self.requests if r.output_tokens and math.isfinite(r.start_s + r.latency_s)]
        if not served:
            return None
        return min(r.start_s for r in served), max(r.start_s + r.latency_s for r in served)


def parse_bench(data: bytes) -> BenchResult:
    """Read a result file.

    Raises FormatError if the file is truncated, holds several documents (`--append-result`), is not an
    object, or lacks the per-request lists (`--save-detailed`).
    """
    try:
        document = json.loads(data, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:  # truncated, garbage, not UTF-8, several documents
        raise FormatError(f"not one complete JSON document ({error}); run the benchmark again") from None
    if not isinstance(document, dict):
        raise FormatError(f"a JSON object was expected, found {type(document).__name__}")
    for key in _REQUIRED:
        _number(key, document.get(key))
    for key, value in document.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise FormatError(f"{key}: the number is not finite")
    columns = {key: _list(document, key) for key in _LISTS}
    sizes = {key: len(column) for key, column in columns.items()}
    if len(set(sizes.values())) != 1:
        raise FormatError(f"the per-request lists differ in length: {sizes}")
    rows = tuple(_row(i, *values) for i, values in enumerate(zip(*columns.values(), strict=True)))
    scalars = {key: value for key, value in document.items() if not isinstance(value, list)}
    return BenchResult(scalars, rows)


def _not_json(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def _list(document: dict[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list):
        raise FormatError(f"{key}: no per-request list; run `vllm bench serve` with --save-detailed")
    return value


def _row(
    request: int, input_len: Any, output_len: Any, ttft: Any, itls: Any, start: Any, error: Any
) -> RequestRow:
    if not isinstance(itls, list):
        raise FormatError(f"itls[{request}]: a list was expected")
    times = [_number(f"itls[{request}]", itl) for itl in itls]
    for itl in times:
        if not abs(itl) < _MAX_ITL_S:
            raise FormatError(f"itls[{request}]: {itl} s is no inter-token time")
    ttft_s = _number(f"ttfts[{request}]", ttft)
    return RequestRow(
        request=request,
        start_s=_number(f"start_times[{request}]", start),
        ttft_s=ttft_s,
        latency_s=ttft_s + sum(times),
        input_tokens=_count(f"input_lens[{request}]", input_len),
        output_tokens=_count(f"output_lens[{request}]", output_len),
        itl_us=tuple(round(itl * 1e6) for itl in times),
        error="" if error is None else str(error),
    )


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{where}: a number was expected, found {str(value)[:60]!r}")
    try:
        return float(value)
    except OverflowError:
        raise FormatError(f"{where}: the number is too large") from None


def _count(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise FormatError(f"{where}: a token count was expected, found {str(value)[:60]!r}")
    return value
