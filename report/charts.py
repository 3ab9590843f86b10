"""Charts as SVG: every point shown, arms in words and told apart by colour and dashes, for a light and a dark page.

Each is one .sql file of analysis/charts: its head says title, kind and units; its rows begin with setup, model, profile
(together a panel) and label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import groupby
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any

import duckdb

from analysis.db import CHARTS, read_head, run_sql
from report.cells import NOT_MEASURED
from report.scale import Place, scale

_WIDTH, _LEFT, _RIGHT = 860, 170, 660  # of the page; edges of the panels of rows
_FRAME_LEFT, _FRAME_RIGHT = 60, _WIDTH - 265
_AXES = {"cut": " (axis does not begin at 0)", "log": " (log axis)", "root": " (square-root axis)"}  # others: from 0
_ARMS = (
    "graphs", "eager", "graphs_kv_matched", "graphs_trimmed", "graphs_unpadded", "eager_kv_matched", "compile_only",
)  # fmt: skip
_DASHES = ("none", "7 3", "2 3", "10 3 2 3", "1 4", "4 2", "12 4")
_STYLE = f"<style>{(Path(__file__).parent / 'templates' / 'chart.css').read_text(encoding='utf-8')}</style>"
_Rows = Sequence[tuple[Any, ...]]
_Panels = Sequence[tuple[str, _Rows]]  # title; rows from the label on
_Kind = Callable[..., Iterator[tuple[list[str], float]]]  # elements and where they end, panel by panel
_Framed = tuple[list[str], Place, Place, float]


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


def _figure(value: float) -> str:
    digits = min(3, max(0, 3 - floor(log10(abs(value))))) if value and isfinite(value) else 0
    return f"{value:,.{digits}f}" if isfinite(value) else "never"


def _interval(lo: float | None, hi: float | None, n: int) -> str:
    """As it stands behind a mean."""
    return f", n = {n}: no interval" if lo is None or hi is None else f" [{_figure(lo)}, {_figure(hi)}], n = {n}"


def _arm(label: str, labels: Sequence[str]) -> int:
    """Number of a label's colour and dashes: an arm's own, or that of its place."""
    return _ARMS.index(label) if label in _ARMS else list(dict.fromkeys(labels)).index(label) % len(_DASHES)


def _text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(content)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _dot(x: float, y: float, hint: str, style: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{style}"><title>{escape(hint)}</title></circle>'


def _across(name: str, marks: Sequence[float], place: Place, top: float, bottom: float) -> list[str]:
    """Heading and upright grid of a panel of rows."""
    body = [_text(0, top - 8, name, "d")]
    for mark in marks:
        body += [_line(place(mark), top, place(mark), bottom)]
        body += [_text(place(mark), bottom + 14, f"{mark:g}", "d", "middle")]
    return body


def _dots(panels: _Panels, top: float, unit: str, axis: str) -> Iterator[tuple[list[str], float]]:
    """A row an arm of (points, blocks, mean, lo, hi, hollow points, reference): points of one block joined, mean (thick
    mark), 95% interval (thin line, with an arrow where it is cut), and these in figures with n, the number of points.
    `axis`: a panel's `own` (from 0 unless all lie within 10%), or `common` to all: that one from 0, or `log`."""

    def drawn(values: Sequence[float | None]) -> list[float]:
        return [v for v in values if v is not None and isfinite(v) and (v > 0 or axis != "log")]

    for name, rows in panels:
        scaled = rows if axis == "own" else [row for _, others in panels for row in others]
        values = [v for row in scaled for v in drawn((*row[1], row[3], *row[6], row[7]))] or [1.0]
        ends = [x for row in scaled for x in row[4:6] if x is not None]
        shape = "cut" if axis == "own" and 0.9 * max(values) < min(values) < max(values) else axis
        place, marks = scale(values, _LEFT, _RIGHT, shape, ends)
        begin, end = top + 24, top + 24 + 22 * len(rows)
        body = _across(f"{name}, {unit}{_AXES.get(shape, '')}", marks, place, begin, end)
        if rows[0][7] is not None:
            body.append(_line(place(rows[0][7]), begin, place(rows[0][7]), end, "r"))
        joins, dots = [], []
        last: dict[str, tuple[float, float]] = {}
        for number, (label, points, blocks, mean, lo, hi, hollow, _) in enumerate(rows):
            middle, arm = begin + 22 * number + 11, _arm(label, [row[0] for row in rows])
            shown = NOT_MEASURED if mean is None else _figure(mean) + _interval(lo, hi, len(points))
            body.append(_text(_LEFT - 10, middle + 4, label, "", "end"))
            body.append(_text(_RIGHT + 10, middle + 4, shown, "d"))
            if lo is not None and hi is not None and drawn([mean]):
                body.append(_line(place(lo), middle, place(hi), middle, "i"))
                body += [_text(_LEFT, middle + 4, "←")] if place(lo) == _LEFT else []
                body += [_text(_RIGHT, middle + 4, "→", "", "end")] if place(hi) == _RIGHT else []
            for i, v in enumerate(points):  # spread up and down, so that equal ones can be told apart
                if not drawn([v]):
                    continue
                at = (place(v), middle + (i % 5 - min(2, (len(points) - 1) / 2)) * 2.5)
                dots.append(_dot(*at, f"{label}: {v:g} {unit}", f"c{arm}"))
                for block in blocks[i : i + 1]:
                    joins += [_line(*last[block], *at, "j")] if block in last else []
                    last[block] = at
            dots += [_dot(place(v), middle, f"{label}, cold cache: {v:g} {unit}", f"o l{arm}") for v in hollow]
            dots += [_line(place(v), middle - 8, place(v), middle + 8, "m") for v in drawn([mean])]
        top = end + 22
        yield [*body, *joins, *dots], top


def _bars(panels: _Panels, top: float, unit: str) -> Iterator[tuple[list[str], float]]:
    """A row a label, of parts (label, part, begins, ends, n), all on one scale; the parts' names stand once, on top."""
    parts = list(dict.fromkeys(row[1] for _, rows in panels for row in rows))
    if any(row[0] != row[1] for _, rows in panels for row in rows):
        legend, x = [], 0.0
        for number, part in enumerate(parts):
            legend.append(f'<rect x="{x:.1f}" y="{top + 2:.1f}" width="11" height="11" class="c{number}"/>')
            legend.append(_text(x + 16, top + 12, part))
            x += 36 + 6.5 * len(part)
        top += 20
        yield legend, top
    place, marks = scale([v for _, rows in panels for row in rows for v in row[2:4]], _LEFT, _RIGHT, "zero")
    for name, rows in panels:
        labels = list(dict.fromkeys((row[0], row[4]) for row in rows))
        begin, end = top + 24, top + 24 + 22 * len(labels)
        body = _across(f"{name}, {unit}", marks, place, begin, end)
        for label, part, a, b, n in rows:
            y, left, right = begin + 22 * labels.index((label, n)) + 4, *sorted((place(a), place(b)))
            body.append(
                f'<rect x="{left:.1f}" y="{y:.1f}" width="{right - left:.1f}" height="14" class="c{parts.index(part)}">'
                f"<title>{escape(f'{label}, {part}: {b - a:.4g} {unit}')}</title></rect>"
            )
        body += [_text(_LEFT - 10, begin + 22 * i + 15, label, "", "end") for i, (label, _) in enumerate(labels)]
        body += [_text(_RIGHT + 10, begin + 22 * i + 15, f"n = {n}", "d") for i, (_, n) in enumerate(labels)]
        top = end + 22
        yield [*body, _line(place(0), begin, place(0), end, "i")], top


def _frame(name: str, points: _Rows, top: float, x_name: str, y_name: str, x_axis: str, y_axis: str) -> _Framed:
    """Heading, grid and axes of a panel of (label, x, y, maybe ends of an interval of y), its scales and its end."""
    begin, end = top + 24, top + (324 if y_axis == "log" else 194)
    x, x_marks = scale([p[1] for p in points], _FRAME_LEFT, _FRAME_RIGHT, x_axis)
    ends = [v for p in points for v in p[3:5] if v is not None]
    y, y_marks = scale([p[2] for p in points], end, begin, y_axis, ends)
    heading = f"{name}: {y_name}" if name else y_name
    body = _across(heading + _AXES.get(y_axis, ""), x_marks, x, begin, end)
    body += [_line(x(1), begin, x(1), end, "r")] if x_axis == "root" and 1 in x_marks else []
    for mark in y_marks:
        body.append(_line(_FRAME_LEFT, y(mark), _FRAME_RIGHT, y(mark), "i" if mark == (y_axis == "log") else ""))
        body.append(_text(_FRAME_LEFT - 6, y(mark) + 4, f"{mark:g}", "d", "end"))
    middle = (_FRAME_LEFT + _FRAME_RIGHT) / 2
    return [*body, _text(middle, end + 29, x_name + _AXES.get(x_axis, ""), "d", "middle")], x, y, end + 32


def _lines(panels: _Panels, top: float, x: str, y: str) -> Iterator[tuple[list[str], float]]:
    """A line a label, named beside its end in order of height."""
    for name, points in panels:
        body, x_at, y_at, end = _frame(name, points, top, x, y, "zero", "zero")
        series = [(label, list(group)) for label, group in groupby(points, key=lambda point: point[0])]
        free = top + 24.0
        for label, group in sorted(series, key=lambda item: -item[1][-1][2]):
            arm = _arm(label, [name for name, _ in series])
            style = f'class="l{arm}" stroke-dasharray="{_DASHES[arm]}"'
            path = " ".join(f"{x_at(px):.1f},{y_at(py):.1f}" for _, px, py in group)
            free = max(free + 14, y_at(group[-1][2]) + 4)
            key = f"{_FRAME_RIGHT + 8},{free - 4:.1f} {_FRAME_RIGHT + 42},{free - 4:.1f}"
            body += [f'<polyline points="{line}" {style}/>' for line in (path, key)]
            body.append(_text(_FRAME_RIGHT + 48, free, label))
        top = max(end, free + 10)
        yield body, top


def _scatter(panels: _Panels, top: float, x: str, y: str, **axes: str) -> Iterator[tuple[list[str], float]]:
    """Points (label, x, y, lo, hi, n, hollow), each place numbered and named beside the panel with all that lie there;
    those without label make a line."""
    for name, points in panels:
        body, x_at, y_at, end = _frame(name, points, top, x, y, **axes)
        line = " ".join(f"{x_at(p[1]):.1f},{y_at(p[2]):.1f}" for p in points if p[0] is None)
        body.append(f'<polyline points="{line}"/>')
        places: dict[tuple[float, float], dict[str, tuple[Any, ...]]] = {}
        for point in points:
            if point[0] is not None:
                places.setdefault(point[1:3], {})[point[0]] = point[3:]
        free = top + 24.0
        for number, ((px, py), there) in enumerate(sorted(places.items(), key=lambda i: (-i[0][1], i[0][0])), 1):
            for label, (lo, hi, n, _) in there.items():
                free += 14
                body.append(_text(_FRAME_RIGHT + 12, free, f"{number}  {label} ({px:g}, {py:g})"))
                if n is not None:
                    free += 14
                    body.append(_text(_FRAME_RIGHT + 26, free, _interval(lo, hi, n).lstrip(", "), "d"))
                if lo is not None and hi is not None:
                    body.append(_line(x_at(px), y_at(lo), x_at(px), y_at(hi), "i"))
            arm = _arm(label, [label]) if len(there) == 1 else len(_ARMS) - 1  # grey where several lie
            hint = f"{', '.join(there)}: {px:g} {x}, {py:g} {y}"
            body.append(_dot(x_at(px), y_at(py), hint, "o l6" if there[label][3] else f"c{arm}"))
            body.append(_text(x_at(px) + 5, y_at(py) - 5, str(number)))
        top = max(end, free + 10)
        yield body, top
