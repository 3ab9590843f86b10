"""The step trace: one CSV line an engine step, written by the campaign's StatLogger plug-in.

Header and columns as COLUMNS; an empty field was not reported in that step. A complete file ends with
`#end rows=<n> dropped=<n> errors=<n>` and a line end; without it the engine was killed or the disk was full.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.formats.errors import FormatError

COLUMNS = (
    "t_ns",
    "running",
    "waiting",
    "kv_usage",
    "preempted",
    "prompt_tokens",
    "generated_tokens",
    "unpadded_tokens",
    "padded_tokens",
    "runtime_mode",
)
HEADER = ",".join(COLUMNS)
RUNTIME_MODES = ("NONE", "PIECEWISE", "FULL")
_END = re.compile(r"#end rows=([0-9]{1,18}) dropped=([0-9]{1,18}) errors=([0-9]{1,18})")
_COUNT = re.compile(r"[0-9]{1,9}")  # a 32-bit integer
_TIME = re.compile(r"[0-9]{1,18}")
_USAGE = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class StepRow:
    """One engine step; None: not reported. `t_ns`: CLOCK_MONOTONIC, when the API server got the record.

    With asynchronous scheduling running, waiting and kv_usage (0-1) are one step ahead of the token columns;
    `prompt_tokens` counts a request's whole prompt at its first token; a preemption is counted when the
    preempted request next emits a token.
    """

    step: int
    t_ns: int
    running: int | None
    waiting: int | None
    kv_usage: float | None
    preempted: int | None
    prompt_tokens: int | None
    generated_tokens: int | None
    unpadded_tokens: int | None
    padded_tokens: int | None
    runtime_mode: str | None


@dataclass(frozen=True)
class StepTrace:
    """Rows in the order written. `dropped` (rows lost to a full queue) and `errors` (records not understood)
    are None when the end line is missing."""

    rows: tuple[StepRow, ...]
    complete: bool
    dropped: int | None
    errors: int | None

    def total(self, column: str) -> int | None:
        """Sum of a token or preemption column; None if no row reports it."""
        values = [v for v in (getattr(row, column) for row in self.rows) if v is not None]
        return sum(values) if values else None


@dataclass(frozen=True)
class WaitingSpan:
    """The steps from the first with a waiting request to the last token.

    `padded_share_full`: padding rows over padded rows of the FULL steps, 0-1; None without FULL steps.
    """

    steps: int
    mean_running: float
    preempted: int
    padded_share_full: float | None


def parse_steps(text: str) -> StepTrace:
    """Read a trace. One that was cut off anywhere gives its whole rows with `complete=False`; a malformed row
    or header raises FormatError."""
    lines = text.split("\n")
    tail = lines.pop()  # empty when the text ends with a line end
    if not lines:
        if HEADER.startswith(tail):
            return StepTrace((), False, None, None)
        raise FormatError(f"step trace: the header `{HEADER}` was expected, found {tail[:80]!r}")
    if lines[0] != HEADER:
        raise FormatError(f"step trace: the header `{HEADER}` was expected, found {lines[0][:80]!r}")
    end = _END.fullmatch(lines[-1]) if tail == "" else None
    body = lines[1:-1] if end else lines[1:]
    rows = tuple(_row(step, line) for step, line in enumerate(body))
    if end is None:
        return StepTrace(rows, False, None, None)
    count, dropped, errors = map(int, end.groups())
    return StepTrace(rows, count == len(rows), dropped, errors)


def _row(step: int, line: str) -> StepRow:
    fields = line.split(",")
    if len(fields) != len(COLUMNS):
        raise FormatError(f"step {step}: {len(COLUMNS)} fields were expected, found {line[:80]!r}")
    where = f"step {step}"
    if not _TIME.fullmatch(fields[0]):
        raise FormatError(f"{where}: t_ns {fields[0][:40]!r} is no time in ns")
    usage = fields[3]
    if usage and not (_USAGE.fullmatch(usage) and 0 <= float(usage) <= 1.001):
        raise FormatError(f"{where}: kv_usage {usage[:40]!r} is no share between 0 and 1")
    mode = fields[9]
    if mode and mode not in RUNTIME_MODES:
        raise FormatError(f"{where}: runtime_mode {mode[:40]!r} is none of {', '.join(RUNTIME_MODES)}")
    counts = {name: _count(where, name, fields[COLUMNS.index(name)]) for name in COLUMNS[1:3] + COLUMNS[4:9]}
    kv_usage = float(usage) if usage else None
    return StepRow(step=step, t_ns=int(fields[0]), kv_usage=kv_usage, runtime_mode=mode or None, **counts)


def _count(where: str, name: str, field: str) -> int | None:
    if not field:
        return None
    if not _COUNT.fullmatch(field):
        raise FormatError(f"{where}: {name} {field[:40]!r} is no count")
    return int(field)


def waiting_span(rows: Sequence[StepRow]) -> WaitingSpan | None:
    """The waiting span of a trace; None if no request ever waited or no token count was reported."""
    first = next((i for i, row in enumerate(rows) if row.waiting), None)
    if first is None:
        return None
    span = [row for row in rows[first:] if row.unpadded_tokens is not None]
    running = [row.running for row in span if row.running is not None]
    if not running:
        return None
    full = [row for row in span if row.runtime_mode == "FULL" and row.padded_tokens]
    padded = sum(row.padded_tokens or 0 for row in full)
    unpadded = sum(row.unpadded_tokens or 0 for row in full)
    return WaitingSpan(
        steps=len(span),
        mean_running=sum(running) / len(running),
        preempted=sum(row.preempted or 0 for row in span),
        padded_share_full=(padded - unpadded) / padded if padded else None,
    )
