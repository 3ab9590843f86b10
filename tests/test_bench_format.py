"""The client's result file: read whole, or refused with the place named."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.formats.bench import parse_bench
from analysis.formats.errors import FormatError
from tests import recorded

SMALL: dict[str, Any] = {
    "num_prompts": 2,
    "completed": 2,
    "failed": 0,
    "duration": 1.0,
    "input_lens": [8, 8],
    "output_lens": [3, 1],
    "ttfts": [0.1, 0.2],
    "itls": [[0.01, 0.0200004], []],
    "start_times": [5.0, 5.5],
    "generated_texts": ["", ""],
    "errors": ["", ""],
}


def encode(**changes: Any) -> bytes:
    return json.dumps(SMALL | changes).encode()


@pytest.mark.parametrize("folder", recorded.GPU_RUNS)
def test_recorded_gpu_run(folder: str) -> None:
    bench = parse_bench(recorded.data(folder, "bench.json"))
    assert (bench.completed, bench.failed, len(bench.requests)) == (500, 0, 500)
    assert {r.input_tokens for r in bench.requests} == {1024}
    assert {r.output_tokens for r in bench.requests} == {128}
    assert bench.window_s is not None
    assert bench.window_s[1] - bench.window_s[0] == pytest.approx(bench.duration_s, abs=0.01)
    tpot_ms = [(r.latency_s - r.ttft_s) / (r.output_tokens - 1) * 1e3 for r in bench.requests]
    assert sum(tpot_ms) / 500 == pytest.approx(bench.scalars["mean_tpot_ms"], rel=1e-6)
    assert not any(isinstance(value, list) for value in bench.scalars.values())
    assert bench.scalars["request_goodput"] is None


def test_recorded_cpu_run() -> None:
    bench = parse_bench(recorded.data(recorded.CPU, "bench.json"))
    assert (bench.completed, bench.failed, {r.output_tokens for r in bench.requests}) == (20, 0, {60})


def test_recorded_bench_against_a_dead_server() -> None:
    bench = parse_bench(recorded.data("cpu-errors", "bench_dead_server.json"))
    assert (bench.completed, bench.failed, bench.window_s) == (0, 20, None)
    assert all("Connect" in r.error for r in bench.requests)


def test_times_are_kept_to_a_microsecond() -> None:
    row = parse_bench(encode()).requests[0]
    assert row.itl_us == (10_000, 20_000)
    assert (row.itls, row.itl_sum_us, row.itl_least_us) == (2, 30_000, 10_000)
    assert row.latency_s == pytest.approx(0.1300004)


def test_window_leaves_out_requests_without_tokens() -> None:
    assert parse_bench(encode(output_lens=[0, 1])).window_s == (5.5, 5.7)


def test_no_requests_at_all_is_read() -> None:
    empty = {key: [] for key, value in SMALL.items() if isinstance(value, list)}
    bench = parse_bench(encode(**empty, completed=0, num_prompts=0))
    assert bench.requests == ()
    assert bench.window_s is None


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "complete JSON"),
        (b"\xff\xfe", "complete JSON"),
        (b"[]", "dictionary"),
        (b"3", "dictionary"),
        (encode() + encode(), "complete JSON"),
        (encode() + b"\n" + encode(), "complete JSON"),
        (encode(itls=None), "itls.*--save-detailed"),
        (encode(ttfts=[0.1]), "differ in length"),
        (encode(duration=None), "duration"),
        (encode(completed="2"), "completed"),
        (encode(failed=True), "failed"),
        (encode(duration=float("nan")), "NaN is no JSON number"),
        (encode(mean_ttft_ms=float("inf")), "Infinity is no JSON number"),
        (encode(mean_ttft_ms=1).replace(b'"mean_ttft_ms": 1', b'"mean_ttft_ms": 1e999'), "mean_ttft_ms"),
        (encode(output_lens=[3, -1]), r"output_lens\[1\]"),
        (encode(output_lens=[3, 1.5]), r"output_lens\[1\]"),
        (encode(itls=[[0.01], 3]), r"itls\[1\]"),
        (encode(itls=[[1e9], []]), r"itls\[0\]"),
        (encode(ttfts=[0.1, "x"]), r"ttfts\[1\]"),
        (encode(start_times=[10**400, 1]), r"start_times\[0\]"),
        (b"[" * 200_000, "complete JSON"),
    ],
)
def test_broken_file_is_refused_with_its_place(data: bytes, named: str) -> None:
    with pytest.raises(FormatError, match=named):
        parse_bench(data)


@given(st.integers(0, len(encode()) - 1))
def test_truncated_file_is_never_read(cut: int) -> None:
    with pytest.raises(FormatError):
        parse_bench(encode()[:cut])


def test_recorded_file_truncated_at_many_places_is_never_read() -> None:
    data = recorded.data(recorded.CPU, "bench.json")
    for cut in range(0, len(data), 997):
        with pytest.raises(FormatError):
            parse_bench(data[:cut])


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@given(st.binary() | st.dictionaries(st.sampled_from(sorted(SMALL)), values).map(lambda d: encode(**d)))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        bench = parse_bench(data)
        assert (bench.completed, bench.failed, bench.duration_s) is not None
        assert bench.window_s is None or len(bench.window_s) == 2
