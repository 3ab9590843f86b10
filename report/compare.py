"""Two data sets in one report: a table's cells beside those of the same table over other data."""

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
    ours, theirs = ({p: [cells.text(row[i]) for i in shown] for p, row in _keyed(t.rows, key)} for t in (table, other))
    rows: list[list[Pair]] = []
    for place in ours | theirs:
        own = ours.get(place, [ABSENT, *["–"] * (len(shown) - 1)])
        if place in theirs:
            rows.append([(a, None if a == b else mark + b) for a, b in zip(own, theirs[place], strict=True)])
        else:
            rows.append([(own[0], ABSENT), *((cell, None) for cell in own[1:])])
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
