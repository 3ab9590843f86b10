"""The result file of `vllm bench serve --save-result --save-detailed` (vLLM 0.23.0, benchmarks/serve.py).

One JSON object: scalars, and one list per request attribute. Times in the lists are seconds; `start_times` is
CLOCK_MONOTONIC. The client exits 0 even when no request succeeded: counts are judged by analysis.gates.
"""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from analysis.formats.errors import FormatError

_Count = Annotated[int, Field(ge=0, lt=2**31)]
_Itl = Annotated[float, Field(gt=-2_000, lt=2_000)]  # s; in whole microseconds a 32-bit integer


class _File(BaseModel):
    """What must be in the file."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    num_prompts: _Count
    completed: _Count
    failed: _Count
    duration: float
    start_times: list[float]
    ttfts: list[float]
    itls: list[list[_Itl]]
    input_lens: list[_Count]
    output_lens: list[_Count]
    errors: list[str | None]


class RequestRow(NamedTuple):
    """One request: the columns of requests.parquet, and what the gates ask of its inter-token times. `start_s`:
    CLOCK_MONOTONIC; `latency_s`: ttft + inter-token times; `error`: '' if none."""

    request: int
    start_s: float
    ttft_s: float
    latency_s: float
    input_tokens: int
    output_tokens: int
    itl_us: tuple[int, ...]  # () in one that was read for the gates
    error: str
    itls: int
    itl_sum_us: int
    itl_least_us: int  # 0 if there is none


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

    @cached_property
    def window_s(self) -> tuple[float, float] | None:
        """(first request sent, last token received), monotonic s; None if no request produced tokens."""
        served = [r for r in self.requests if r.output_tokens and math.isfinite(r.start_s + r.latency_s)]
        if not served:
            return None
        return min(r.start_s for r in served), max(r.start_s + r.latency_s for r in served)


def parse_bench(data: bytes) -> BenchResult:
    """Read a result file.

    Raises FormatError if the file is truncated, holds several documents (`--append-result`), is not an object, or
    lacks the per-request lists (`--save-detailed`).
    """
    try:
        document = json.loads(data, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:  # truncated, garbage, not UTF-8, several documents
        raise FormatError(f"not one complete JSON document ({error}); run the benchmark again") from None
    try:
        file = _File.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else part for part in first["loc"]) or "the document"
        raise FormatError(f"{place}: {first['msg']}; run `vllm bench serve` with --save-detailed") from None
    scalars = {key: value for key, value in document.items() if not isinstance(value, list)}
    for key, value in scalars.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise FormatError(f"{key}: the number is not finite")
    lists = (file.start_times, file.ttfts, file.itls, file.input_lens, file.output_lens, file.errors)
    if len({len(column) for column in lists}) != 1:
        raise FormatError(f"the per-request lists differ in length: {[len(column) for column in lists]}")
    return BenchResult(scalars, tuple(_row(i, *request) for i, request in enumerate(zip(*lists, strict=True))))


def _row(i: int, start: float, ttft: float, itls: list[float], size: int, got: int, error: str | None) -> RequestRow:
    us = tuple(round(itl * 1e6) for itl in itls)
    sums = len(us), sum(us), min(us, default=0)
    return RequestRow(i, start, ttft, ttft + sum(itls), size, got, us, error or "", *sums)


def _not_json(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")
