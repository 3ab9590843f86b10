"""Charts as SVG: every point shown, arms in words and told apart by colour and dashes, for a light and a dark page.

Each is one .sql file of analysis/charts: its head says title, kind and units; its rows begin with setup, model, profile
(together a panel) and label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import groupby
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

import duckdb

from analysis.db import CHARTS, read_head, run_sql

_WIDTH, _LEFT, _RIGHT = 860, 160, 24  # of the page; of the panels of rows
_FRAME_LEFT, _FRAME_RIGHT, _FRAME_HEIGHT = 60, _WIDTH - 250, 170
_ARMS = (
    "graphs",
    "eager",
    "graphs_kv_matched",
    "graphs_trimmed",
    "graphs_unpadded",
    "eager_kv_matched",
    "compile_only",
)
_DASHES = ("none", "7 3", "2 3", "10 3 2 3", "1 4", "4 2", "12 4")
_STYLE = f"<style>{(Path(__file__).parent / 'templates' / 'chart.css').read_text(encoding='utf-8')}</style>"
_Rows = Sequence[tuple[Any, ...]]
_Panels = Sequence[tuple[str, _Rows]]  # title; rows from the label on
_Kind = Callable[..., Iterator[tuple[list[str], float]]]  # elements and where they end, panel by panel
_Place = Callable[[float], float]


def draw(con: duckdb.DuckDBPyConnection, name: str, mark: str, single: bool) -> tuple[str | None, str]:
    """The chart `name`, None if there is nothing to draw, and its SQL. `mark` goes before the title; `single`: the
    report has one setup, which need not be named."""
    path = CHARTS / f"{name}.sql"
    head, sql = read_head(path)
    panels = [
        (" · ".join(part for part in (model, profile, None if single else setup) if part), [row[3:] for row in rows])
        for (setup, model, profile), rows in groupby(run_sql(con, path, sql).fetchall(), key=lambda row: row[:3])
    ]
    if not panels:
        return None, sql
    title = mark + head.pop("title")
    kinds: dict[str, _Kind] = {"dots": _dots, "bars": _bars, "lines": _lines, "scatter": _scatter}
    body, top = [_text(0, 14, title, "h")], 24.0
    for added, bottom in kinds[head.pop("kind")](panels, top, **head):
        body += added
        top = bottom
    svg = (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {top + 4:.0f}"'
        f' width="{_WIDTH}" height="{top + 4:.0f}"><title>{escape(title)}</title>{_STYLE}{"".join(body)}</svg>'
    )
    return svg, sql


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that lie in low..high."""
    if high <= low:
        return [low]
    step = 10 ** floor(log10((high - low) / count))
    step = next(step * f for f in (1, 2, 5, 10) if (high - low) / (step * f) <= count)
    return [round(i * step, 10) for i in range(ceil(low / step), floor(high / step) + 1)]


def _scale(values: Sequence[float], begin: float, end: float) -> tuple[_Place, list[float]]:
    low, high = min(values), max(values)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    low, high = low - margin, high + margin
    return lambda v: begin + (v - low) / (high - low) * (end - begin), ticks(low, high)


def _arm(label: str, labels: Sequence[str]) -> int:
    """Number of a label's colour and dashes: an arm's own, or that of its place."""
    return _ARMS.index(label) if label in _ARMS else list(dict.fromkeys(labels)).index(label) % len(_DASHES)


def _text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(content)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _dot(x: float, y: float, hint: str, style: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{style}"><title>{escape(hint)}</title></circle>'


def _across(name: str, marks: Sequence[float], place: _Place, top: float, bottom: float) -> list[str]:
    """Heading and upright grid of a panel of rows."""
    body = [_text(0, top - 8, name, "d")]
    for mark in marks:
        body += [_line(place(mark), top, place(mark), bottom)]
        body += [_text(place(mark), bottom + 14, f"{mark:g}", "d", "middle")]
    return body


def _dots(panels: _Panels, top: float, unit: str) -> Iterator[tuple[list[str], float]]:
    """A row an arm of (points, blocks, mean, lo, hi, hollow points, reference): points of one block joined, mean (thick
    mark), 95% interval (thin line). The points set the scale: an interval that reaches far beyond is cut."""
    for name, rows in panels:
        values = [v for row in rows for v in (*row[1], *row[6], *([row[7]] if row[7] is not None else []))]
        spread = max(values) - min(values) or abs(max(values)) * 0.02
        low, high = min(values) - spread / 2, max(values) + spread / 2
        ends = [x for row in rows for x in row[4:6] if x is not None and low <= x <= high]
        place, marks = _scale([*values, *ends], _LEFT, _WIDTH - _RIGHT)
        begin, end = top + 24, top + 24 + 22 * len(rows)
        body = _across(f"{name}, {unit}", marks, place, begin, end)
        if rows[0][7] is not None:
            body.append(_line(place(rows[0][7]), begin, place(rows[0][7]), end, "r"))
        joins, dots = [], []
        last: dict[str, tuple[float, float]] = {}
        for number, (label, points, blocks, mean, lo, hi, hollow, _) in enumerate(rows):
            middle, arm = begin + 22 * number + 11, _arm(label, [row[0] for row in rows])
            body.append(_text(_LEFT - 10, middle + 4, label, "", "end"))
            if lo is not None and hi is not None:
                body.append(_line(max(place(lo), _LEFT), middle, min(place(hi), _WIDTH - _RIGHT), middle, "i"))
            for i, v in enumerate(points):  # spread up and down, so that equal ones can be told apart
                at = (place(v), middle + (i % 5 - min(2, (len(points) - 1) / 2)) * 2.5)
                dots.append(_dot(*at, f"{label}: {v:g} {unit}", f"c{arm}"))
                for block in blocks[i : i + 1]:
                    joins += [_line(*last[block], *at, "j")] if block in last else []
                    last[block] = at
            dots += [_dot(place(v), middle, f"{label}, cold cache: {v:g} {unit}", f"o l{arm}") for v in hollow]
            if mean is not None:
                dots.append(_line(place(mean), middle - 8, place(mean), middle + 8, "m"))
        top = end + 22
        yield [*body, *joins, *dots], top


def _bars(panels: _Panels, top: float, unit: str) -> Iterator[tuple[list[str], float]]:
    """A row a label, of parts (label, part, begins, ends); the parts' names stand once, on top."""
    parts = list(dict.fromkeys(row[1] for _, rows in panels for row in rows))
    if any(row[0] != row[1] for _, rows in panels for row in rows):
        legend, x = [], 0.0
        for number, part in enumerate(parts):
            legend.append(f'<rect x="{x:.1f}" y="{top + 2:.1f}" width="11" height="11" class="c{number}"/>')
            legend.append(_text(x + 16, top + 12, part))
            x += 36 + 6.5 * len(part)
        top += 20
        yield legend, top
    for name, rows in panels:
        place, marks = _scale([0, *(v for row in rows for v in row[2:4])], _LEFT, _WIDTH - _RIGHT)
        labels = list(dict.fromkeys(row[0] for row in rows))
        begin, end = top + 24, top + 24 + 22 * len(labels)
        body = _across(f"{name}, {unit}", marks, place, begin, end)
        for label, part, a, b in rows:
            y, left, right = begin + 22 * labels.index(label) + 4, *sorted((place(a), place(b)))
            body.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{right - left:.1f}" height="14" class="c{parts.index(part)}">'
                f"<title>{escape(f'{label}, {part}: {b - a:.4g} {unit}')}</title></rect>"
            )
        body += [_text(_LEFT - 10, begin + 22 * i + 15, label, "", "end") for i, label in enumerate(labels)]
        top = end + 22
        yield [*body, _line(place(0), begin, place(0), end, "i")], top


def _frame(name: str, points: _Rows, top: float, x_name: str, y_name: str) -> tuple[list[str], _Place, _Place]:
    """Heading, grid and axes of a panel of (label, x, y, maybe ends of an interval of y), and its scales."""
    begin, end = top + 28, top + 28 + _FRAME_HEIGHT
    x, x_marks = _scale([p[1] for p in points], _FRAME_LEFT, _FRAME_RIGHT)
    y, y_marks = _scale([v for p in points for v in p[2:] if v is not None], end, begin)
    body = [_text(0, top + 16, f"{name}: {y_name}" if name else y_name, "d")]
    for mark in x_marks:
        body += [_line(x(mark), begin, x(mark), end), _text(x(mark), end + 14, f"{mark:g}", "d", "middle")]
    for mark in y_marks:
        body += [_line(_FRAME_LEFT, y(mark), _FRAME_RIGHT, y(mark), "i" if mark == 0 else "")]
        body += [_text(_FRAME_LEFT - 6, y(mark) + 4, f"{mark:g}", "d", "end")]
    return [*body, _text((_FRAME_LEFT + _FRAME_RIGHT) / 2, end + 29, x_name, "d", "middle")], x, y


def _lines(panels: _Panels, top: float, x: str, y: str) -> Iterator[tuple[list[str], float]]:
    """A line a label, named beside its end in order of height."""
    for name, points in panels:
        body, x_at, y_at = _frame(name, points, top, x, y)
        series = [(label, list(group)) for label, group in groupby(points, key=lambda point: point[0])]
        free = top + 28.0
        for label, group in sorted(series, key=lambda item: -item[1][-1][2]):
            arm = _arm(label, [name for name, _ in series])
            style = f'class="l{arm}" stroke-dasharray="{_DASHES[arm]}"'
            path = " ".join(f"{x_at(px):.1f},{y_at(py):.1f}" for _, px, py in group)
            free = max(free + 14, y_at(group[-1][2]) + 4)
            key = f"{_FRAME_RIGHT + 8},{free - 4:.1f} {_FRAME_RIGHT + 42},{free - 4:.1f}"
            body += [f'<polyline points="{line}" {style}/>' for line in (path, key)]
            body.append(_text(_FRAME_RIGHT + 48, free, label))
        top = max(top + _FRAME_HEIGHT + 64, free + 10)
        yield body, top


def _scatter(panels: _Panels, top: float, x: str, y: str) -> Iterator[tuple[list[str], float]]:
    """Points (label, x, y, lo, hi), each place named once with all that lie there; those without label make a line."""
    for name, points in panels:
        body, x_at, y_at = _frame(name, points, top, x, y)
        line = " ".join(f"{x_at(p[1]):.1f},{y_at(p[2]):.1f}" for p in points if p[0] is None)
        body.append(f'<polyline points="{line}"/>')
        places: dict[tuple[float, float], dict[str, None]] = {}
        named = [point for point in points if point[0] is not None]
        for label, px, py, lo, hi in named:
            places.setdefault((px, py), {})[label] = None
            if lo is not None and hi is not None:
                body.append(_line(x_at(px), y_at(lo), x_at(px), y_at(hi), "i"))
        free = top + 28.0
        for (px, py), labels in sorted(places.items(), key=lambda item: (-item[0][1], item[0][0])):
            arm = _arm(next(iter(labels)), [point[0] for point in named])
            body.append(_dot(x_at(px), y_at(py), f"{', '.join(labels)}: {px:g} {x}, {py:g} {y}", f"c{arm}"))
            first = max(free + 14, y_at(py) + 4)
            body.append(_line(x_at(px) + 5, y_at(py), _FRAME_RIGHT + 4, first - 4))
            for number, label in enumerate(labels):
                free = first + 14 * number
                body.append(_text(_FRAME_RIGHT + 8, free, f"{label} ({px:g}, {py:g})"))
        top = max(top + _FRAME_HEIGHT + 64, free + 10)
        yield body, top
