"""The engine's /metrics text."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.formats.errors import FormatError
from analysis.formats.metrics import parse_metrics
from tests import recorded


@pytest.mark.parametrize(
    ("folder", "blocks", "preemptions"),
    [
        (recorded.GRAPHS, 1869, 55),
        (recorded.GRAPHS_WARM, 1869, 55),
        (recorded.EAGER, 2104, 48),
        (recorded.MATCHED, 2104, 48),
        (recorded.COMPILE_ONLY, 2104, 48),
    ],
)
def test_recorded_gpu_run(folder: str, blocks: int, preemptions: int) -> None:
    metrics = parse_metrics(recorded.text(folder, "metrics.txt"))
    assert metrics.num_gpu_blocks == blocks
    assert metrics.value("vllm:num_preemptions_total") == preemptions
    assert metrics.value("vllm:generation_tokens_total") == 64_257
    assert metrics.value("vllm:request_success_total") == 503
    assert metrics.value("vllm:request_success_total", finished_reason="stop") == 0


def test_recorded_cpu_run_before_and_after() -> None:
    before = parse_metrics(recorded.text(recorded.CPU, "metrics_before.txt"))
    after = parse_metrics(recorded.text(recorded.CPU, "metrics_after.txt"))
    assert (before.num_gpu_blocks, after.num_gpu_blocks) == (40, 40)
    assert before.value("vllm:generation_tokens_total") == 4
    assert after.value("vllm:generation_tokens_total") == 4 + 22 * 60
    assert after.value("vllm:num_preemptions_total") == 7


def test_absent_metric_is_none_not_zero() -> None:
    metrics = parse_metrics('vllm:a{x="1"} 3\nvllm:a{x="2"} 4\n')
    assert metrics.value("vllm:b") is None
    assert metrics.value("vllm:a", x="3") is None
    assert metrics.value("vllm:a") == 7
    assert metrics.num_gpu_blocks is None


def test_rows_keep_name_labels_and_order() -> None:
    metrics = parse_metrics('vllm:a{y="2",x="1"} 3\nother 4\n')
    assert metrics.as_rows() == [("vllm:a", "x=1,y=2", 3.0), ("other", "", 4.0)]


def test_unset_block_count_is_none() -> None:
    text = 'vllm:cache_config_info{num_gpu_blocks="None"} 1.0\n'
    assert parse_metrics(text).num_gpu_blocks is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "cut off"),
        ("vllm:a 12", "cut off"),
        ("vllm:a{x=\n", "not Prometheus text"),
        ("vllm:a twelve\n", "not Prometheus text"),
        ("process_open_fds 3\n", "vllm:"),
        ("<html>\n", "not Prometheus text|vllm:"),
    ],
)
def test_broken_text_is_refused(text: str, named: str) -> None:
    with pytest.raises(FormatError, match=named):
        parse_metrics(text)


@given(st.text() | st.text(alphabet='vlm:a{}="1,.e+\\ #TYPEHL\n').map(lambda t: f"vllm:a 1\n{t}\n"))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(FormatError):
        metrics = parse_metrics(text)
        assert metrics.as_rows()
        assert metrics.num_gpu_blocks is None or metrics.num_gpu_blocks >= 0
