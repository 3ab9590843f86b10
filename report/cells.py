"""How a value of a query's result is written in HTML, Markdown and CSV."""

import csv
import io
import re
from decimal import Decimal
from typing import Any

from analysis.db import Table

NOT_MEASURED = "not measured"
_UNITS = {
    "_tok_s": "tokens/s", "_tokens_per_j": "tokens/J", "_gib": "GiB", "_mhz": "MHz", "_pct": "%", "_ms": "ms",
    "_s": "s", "_j": "J", "_w": "W", "_utc": "UTC",
}  # fmt: skip
_WORDS = {"kv": "KV", "sql": "SQL", "sm": "SM", "tpot": "TPOT", "ttft": "TTFT"}
_PARTS = ("mean", "lo", "hi", "n")  # of an estimate
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|])")


def heading(column: str) -> str:
    """`to_health_s` -> `to health, s`."""
    suffix = next((suffix for suffix in _UNITS if column.endswith(suffix)), "")
    words = " ".join(_WORDS.get(word, word) for word in column.removesuffix(suffix).split("_"))
    return f"{words}, {_UNITS[suffix]}" if suffix else words


def text(value: Any) -> str:
    """A cell. NULL is `not measured`; an estimate is `mean [lo, hi] (n = N)`, without interval for n = 1, or `none` of
    runs that have no such thing. Of a long list the first 99."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value[:99])) + f", … ({len(value)} in the CSV)" * (len(value) > 99)
    if not isinstance(value, dict):
        return str(value)
    mean, lo, hi, n = (value[part] for part in _PARTS)
    if n == 0:
        return "reference"
    if mean is None:
        return "none" if n else NOT_MEASURED
    return f"{mean} (n = {n})" if lo is None else f"{mean} [{lo}, {hi}] (n = {n})"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal | dict) and not isinstance(value, bool)


def to_csv(table: Table) -> str:
    """The table as CSV: an estimate takes four columns, NULL is empty, a list is joined by blanks."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    parts = [_PARTS if column in table.estimates else ("",) for column in table.columns]
    writer.writerow(f"{c}.{p}" if p else c for c, names in zip(table.columns, parts, strict=True) for p in names)
    for row in table.rows:
        writer.writerow(_plain(v, p) for v, names in zip(row, parts, strict=True) for p in names)
    return stream.getvalue()


def _plain(value: Any, part: str) -> Any:
    if part and value is not None:
        return value[part]
    return " ".join("" if v is None else str(v) for v in value) if isinstance(value, list) else value


def markdown(value: str) -> str:
    """Text that Markdown shows as it is, on one line, in a table too."""
    return _MARKDOWN.sub(r"\\\1", " ".join(value.split()))
