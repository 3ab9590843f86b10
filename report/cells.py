"""How a value of a query's result is written in HTML, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from typing import Any

from analysis.db import Table

NOT_MEASURED = "not measured"
_UNITS = {
    "_tok_s": "tokens/s",
    "_tokens_per_j": "tokens/J",
    "_gib": "GiB",
    "_pct": "%",
    "_ms": "ms",
    "_s": "s",
    "_j": "J",
    "_w": "W",
    "_utc": "UTC",
}
_WORDS = {"kv": "KV", "sql": "SQL"}


def heading(column: str) -> str:
    """`to_health_s` -> `to health, s`."""
    for suffix, unit in _UNITS.items():
        if column.endswith(suffix):
            words = column.removesuffix(suffix)
            return f"{_words(words)}, {unit}"
    return _words(column)


def _words(name: str) -> str:
    return " ".join(_WORDS.get(word, word) for word in name.split("_"))


def text(value: Any) -> str:
    """A cell. NULL is `not measured`; an estimate is `mean [lo, hi] (n = N)`, without interval for n = 1."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, dict):
        return _estimate(value)
    if isinstance(value, list | tuple):
        return ", ".join(text(item) for item in value)
    return str(value)


def _estimate(value: dict[str, Any]) -> str:
    mean, lo, hi, n = (value.get(key) for key in ("mean", "lo", "hi", "n"))
    if n == 0:
        return "reference"
    if mean is None:
        return NOT_MEASURED
    interval = "" if lo is None or hi is None else f" [{lo}, {hi}]"
    return f"{mean}{interval} (n = {n})"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal | dict) and not isinstance(value, bool)


def to_csv(table: Table) -> str:
    """The table as CSV: an estimate takes four columns, NULL is empty, a list is joined by blanks."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    header: list[str] = []
    for column in table.columns:
        header += (
            [f"{column}.{part}" for part in ("mean", "lo", "hi", "n")]
            if column in table.estimates
            else [column]
        )
    writer.writerow(header)
    for row in table.rows:
        out: list[Any] = []
        for column, value in zip(table.columns, row, strict=True):
            if column in table.estimates:
                out += [(value or {}).get(part) for part in ("mean", "lo", "hi", "n")]
            else:
                out.append(
                    " ".join("" if v is None else str(v) for v in value) if isinstance(value, list) else value
                )
        writer.writerow(out)
    return stream.getvalue()
