"""The step trace: one CSV line an engine step, written by the campaign's StatLogger plug-in.

Header and columns as COLUMNS; an empty field was not reported in that step. A complete file ends with
`#end rows=<n> dropped=<n> errors=<n>` and a line end; without it the engine was killed or the disk was full.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.formats.errors import FormatError

COLUMNS = (
    "t_ns", "running", "waiting", "kv_usage", "preempted", "prompt_tokens", "generated_tokens",
    "unpadded_tokens", "padded_tokens", "runtime_mode",
)  # fmt: skip
HEADER = ",".join(COLUMNS)
_END = re.compile(r"#end rows=([0-9]{1,18}) dropped=([0-9]{1,18}) errors=([0-9]{1,18})")
# pattern and type of a field; any other is a 32-bit count or empty
_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "t_ns": ("[0-9]{1,18}", int),
    "kv_usage": (r"(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)?", float),
    "runtime_mode": ("NONE|PIECEWISE|FULL|", str),
}
_COUNT = ("[0-9]{0,9}", int)
_ROW = re.compile(",".join(f"(?P<{name}>{_FIELDS.get(name, _COUNT)[0]})" for name in COLUMNS))


class StepRow(NamedTuple):
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


def parse_steps(text: str) -> StepTrace:
    """Read a trace. One that was cut off anywhere gives its whole rows with `complete=False`; a malformed row or header
    raises FormatError."""
    lines = text.split("\n")
    tail = lines.pop()  # empty when the text ends with a line end
    if not lines and HEADER.startswith(tail):
        return StepTrace((), False, None, None)
    if not lines or lines[0] != HEADER:
        raise FormatError(f"step trace: the header `{HEADER}` was expected, found {text[:80]!r}")
    end = _END.fullmatch(lines[-1]) if tail == "" else None
    body = lines[1:-1] if end else lines[1:]
    rows = tuple(_row(step, line) for step, line in enumerate(body))
    if end is None:
        return StepTrace(rows, False, None, None)
    count, dropped, errors = map(int, end.groups())
    return StepTrace(rows, count == len(rows), dropped, errors)


def _row(step: int, line: str) -> StepRow:
    found = _ROW.fullmatch(line)
    if found is None or float(found["kv_usage"] or 0) > 1.001:
        raise FormatError(f"step {step}: {line[:80]!r} is no row of `{HEADER}`")
    values: dict[str, Any] = {
        name: _FIELDS.get(name, _COUNT)[1](text) if text else None for name, text in found.groupdict().items()
    }
    return StepRow(step, **values)
