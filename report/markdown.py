"""Markdown: escaping for cells and paragraphs of the report."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"([\\`*_\[\]<>|])")


def escape(value: str) -> str:
    """Text that Markdown shows as it is, on one line, in a table too."""
    return _SPECIAL.sub(r"\\\1", " ".join(value.split()))


def table(header: list[str], rows: list[list[str]], numeric: list[bool]) -> str:
    """A pipe table; numeric columns are right-aligned."""
    lines = [
        "| " + " | ".join(escape(h) for h in header) + " |",
        "|" + "|".join("---:" if n else "---" for n in numeric) + "|",
    ]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)
