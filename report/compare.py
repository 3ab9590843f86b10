"""Two data sets in one report: a table's cells beside those of the same table over other data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from analysis.db import Table
from report import cells

ABSENT = "no such row"
Pair = tuple[str, str | None]  # a cell, and the other data's where it differs


def pairs(table: Table, other: Table | None, shown: Sequence[int], mark: str = "") -> list[list[Pair]]:
    """Rows of cells in the columns `shown`; without `other` as they are. Rows belong together when the words they begin
    with are the same (the setup apart, which names the card); those that only the other data has come last. `mark` goes
    before every cell of the other data."""
    if other is None:
        return [[(cells.text(row[i]), None) for i in shown] for row in table.rows]
    key = [i for i in _key(table, other) if table.columns[i] != "setup"]
    theirs = dict(_keyed(other.rows, key))
    rows: list[list[Pair]] = []
    for place, row in _keyed(table.rows, key):
        own, match = [cells.text(row[i]) for i in shown], theirs.pop(place, None)
        texts = [cells.text(match[i]) for i in shown] if match else own
        rows.append([(cell, None if cell == text else mark + text) for cell, text in zip(own, texts, strict=True)])
        if match is None:
            rows[-1][0] = (own[0], ABSENT)
    for row in theirs.values():
        rows.append([("–", mark + cells.text(row[i])) for i in shown])
        rows[-1][0] = (ABSENT, rows[-1][0][1])
    return rows


def _key(table: Table, other: Table) -> Iterator[int]:
    """The leading columns that hold words alone in both."""
    for i in range(len(table.columns)):
        if not all(isinstance(row[i], str) for row in (*table.rows, *other.rows)):
            return
        if i and len({tuple(row[:i]) for row in table.rows}) == len(table.rows):
            return  # the columns so far tell the rows apart
        yield i


def _keyed(rows: Sequence[tuple[Any, ...]], key: Sequence[int]) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    seen: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        words = tuple(row[i] for i in key)
        seen[words] += 1
        yield (*words, seen[words]), row
