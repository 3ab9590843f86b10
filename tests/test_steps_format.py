"""The step trace: what the plug-in wrote is read whole, and what was cut off is never taken for whole."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.formats.errors import FormatError
from analysis.formats.steps import HEADER, StepRow, parse_steps
from tests import recorded
from tests.spans import waiting_span

SMALL = f"{HEADER}\n1,2,0,0.5,0,10,1,11,16,FULL\n2,0,0,,,,,,,\n#end rows=2 dropped=0 errors=0\n"


@pytest.mark.parametrize(
    ("folder", "steps", "running", "preempted", "padded"),
    [
        (recorded.GRAPHS, 2455, 26.1, 55, 0.167),
        (recorded.GRAPHS_WARM, 2455, 26.1, 55, 0.167),
        (recorded.EAGER, 2197, 29.2, 48, None),
        (recorded.COMPILE_ONLY, 2197, 29.2, 48, None),
        (recorded.MATCHED, 2197, 29.1, 48, 0.056),
        (recorded.CPU, 121, 9.6, 7, None),
    ],
)
def test_waiting_span_of_recorded_runs(
    folder: str, steps: int, running: float, preempted: int, padded: float | None
) -> None:
    span = waiting_span(parse_steps(recorded.steps_csv(folder)).rows)
    assert span is not None
    assert (span.steps, round(span.mean_running, 1), span.preempted) == (steps, running, preempted)
    assert span.padded_share_full == (None if padded is None else pytest.approx(padded, abs=5e-4))


def test_recorded_totals_are_the_engines_counters() -> None:
    trace = parse_steps(recorded.steps_csv(recorded.GRAPHS))
    assert trace.complete
    assert trace.total("generated_tokens") == 64_257
    assert trace.total("prompt_tokens") == 514_080
    assert trace.total("preempted") == 55


def test_empty_field_is_none_not_zero() -> None:
    assert parse_steps(SMALL).rows == (
        StepRow(0, 1, 2, 0, 0.5, 0, 10, 1, 11, 16, "FULL"),
        StepRow(1, 2, 0, 0, None, None, None, None, None, None, None),
    )
    assert parse_steps(SMALL.replace(",11,16,", ",,,")).total("unpadded_tokens") is None


def test_waiting_span_without_waiting_is_none() -> None:
    assert waiting_span(parse_steps(SMALL).rows) is None
    assert waiting_span(()) is None


@pytest.mark.parametrize("cut", range(len(SMALL)))
def test_trace_cut_anywhere_is_incomplete(cut: int) -> None:
    trace = parse_steps(SMALL[:cut])
    assert not trace.complete
    assert trace.dropped is None
    assert trace.errors is None


def test_rows_lost_before_the_end_line_make_it_incomplete() -> None:
    assert not parse_steps(SMALL.replace("2,0,0,,,,,,,\n", "")).complete


def test_dropped_and_misread_steps_are_told() -> None:
    trace = parse_steps(SMALL.replace("dropped=0 errors=0", "dropped=3 errors=1"))
    assert (trace.complete, trace.dropped, trace.errors) == (True, 3, 1)


@pytest.mark.parametrize(
    "line",
    [
        "1,2,0,0.5,0,10,1,11,16",
        "1,2,0,0.5,0,10,1,11,16,HALF",
        "x,2,0,0.5,0,10,1,11,16,FULL",
        ",2,0,0.5,0,10,1,11,16,FULL",
        "1,-2,0,0.5,0,10,1,11,16,FULL",
        "1,2,0,1.5,0,10,1,11,16,FULL",
        "1,2,0,nan,0,10,1,11,16,FULL",
        "1,2,0,0.5,0,10,1,99999999999,16,FULL",
        "1,²,0,0.5,0,10,1,11,16,FULL",
    ],
)
def test_malformed_row_is_named(line: str) -> None:
    with pytest.raises(FormatError, match="step 0"):
        parse_steps(f"{HEADER}\n{line}\n#end rows=1 dropped=0 errors=0\n")


def test_another_header_is_refused() -> None:
    with pytest.raises(FormatError, match="header"):
        parse_steps("time,running\n1,2\n")


@given(st.text() | st.text(alphabet="0123456789,.\n#=endrowsFUL ").map(lambda tail: f"{HEADER}\n{tail}"))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(FormatError):
        waiting_span(parse_steps(text).rows)


counts = st.none() | st.integers(0, 10**9 - 1)


@given(st.lists(st.tuples(st.integers(0, 10**18 - 1), counts, counts, counts)))
def test_written_rows_are_read_back(rows: list[tuple[int, int | None, int | None, int | None]]) -> None:
    def field(value: int | None) -> str:
        return "" if value is None else str(value)

    body = "".join(f"{t},{field(r)},{field(w)},,{field(p)},,,,,\n" for t, r, w, p in rows)
    trace = parse_steps(f"{HEADER}\n{body}#end rows={len(rows)} dropped=0 errors=0\n")
    assert trace.complete
    assert [(s.t_ns, s.running, s.waiting, s.preempted) for s in trace.rows] == rows
