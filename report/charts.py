"""Charts as SVG: every point shown, arms named in words, colours for a light and a dark page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil, floor, log10
from typing import Any

import duckdb

_WIDTH, _LEFT, _RIGHT = 760, 150, 24
_FRAME_RIGHT = _WIDTH - 270
_DASHES = ("none", "6 3", "2 3", "10 3 2 3", "1 4")
_STYLE = (
    "<style>.chart{--ink:#1d2329;--dim:#667079;--line:#d4d9de;--hot:#0b62a8;font:12px system-ui,sans-serif}"
    "@media (prefers-color-scheme:dark){.chart{--ink:#e3e7ea;--dim:#9aa5ae;--line:#3b444c;--hot:#6db6f2}}"
    ".chart text{fill:var(--ink)}.chart .d{fill:var(--dim)}.chart .h{font-weight:600}.chart line{stroke:var(--line)}"
    ".chart .m{stroke:var(--ink);stroke-width:2}.chart .i{stroke:var(--ink);stroke-width:1}"
    ".chart .p{fill:var(--hot);fill-opacity:.65}.chart .o{fill:none;stroke:var(--hot);stroke-width:1.5}"
    ".chart .c,.chart .l{fill:none;stroke:var(--dim);stroke-width:1.5}.chart .l{stroke:var(--hot)}</style>"
)
# name: title, unit, and rows of setup, model, profile (together a panel), arm, points, mean, lo, hi, hollow points
_DOT_PLOTS = {
    "throughput": (
        "Throughput by cell and arm: every run, mean and 95% interval",
        "tokens/s",
        "SELECT setup, model, profile, arm, points, estimate.mean, estimate.lo, estimate.hi, [] FROM estimates"
        " WHERE metric = 'output_tok_s' ORDER BY setup, model, profile, arm",
    ),
    "effects": (
        "Output tokens/s against eager: every block, mean ratio and 95% interval",
        "ratio",
        "SELECT setup, model, profile, arm_a, points, ratio.mean, ratio.lo, ratio.hi, [] FROM effects"
        " WHERE metric = 'output_tok_s' AND arm_b = 'eager' AND points IS NOT NULL"
        " ORDER BY setup, model, profile, arm_a",
    ),
    "cold_start": (
        "Cold start, exec to /health: warm cache (filled) and first starts or cold cache (hollow)",
        "s",
        "SELECT setup, model, NULL, arm, coalesce(points, []), estimate.mean, estimate.lo, estimate.hi,"
        " coalesce(cold, []) FROM (FROM estimates WHERE metric = 'start_s' AND profile = '(all)')"
        " FULL JOIN (SELECT setup, model, arm, list(start_s ORDER BY folder) AS cold FROM starts"
        " WHERE (kind = 'prime' OR NOT warm) AND start_s IS NOT NULL GROUP BY ALL) USING (setup, model, arm)"
        " ORDER BY setup, model, arm",
    ),
}
# name: title, names of x and y, and rows of setup, model, profile (together a panel), arm, x, y
_XY_PLOTS = {
    "steps": (
        "Engine steps in the waiting span against KV blocks: every run, and the scheduling model (line)",
        "KV blocks",
        "steps",
        "SELECT setup, model, profile, arm, kv_blocks, steps FROM run_figures JOIN runs USING (folder)"
        " WHERE steps IS NOT NULL AND kv_blocks IS NOT NULL"
        " UNION ALL SELECT setup, model, profile, NULL, kv_blocks, steps FROM model_steps"
        " WHERE steps IS NOT NULL AND setup IN (SELECT setup FROM runs)"
        " ORDER BY setup, model, profile, arm NULLS FIRST, kv_blocks, steps",
    ),
    "break_even": (
        "Break-even: time saved against eager, less the longer start, after a number of requests",
        "requests",
        "s saved",
        "SELECT setup, model, profile, arm, x, x * saving.mean - extra.mean AS y FROM ("
        " SELECT *, unnest([0, 2 * coalesce(max(requests) FILTER (isfinite(requests))"
        " OVER (PARTITION BY setup, model, profile), 500)]) AS x FROM break_evens)"
        " WHERE saving.mean IS NOT NULL ORDER BY setup, model, profile, arm, x",
    ),
    "running": (
        "Running requests over the window of the first counted block, by step trace",
        "s",
        "running",
        "SELECT setup, model, profile, arm, bin / 50 * seconds(begin_ns, end_ns), sum(running * wait) / sum(wait)"
        " FROM (SELECT w.*, window_begin_ns AS begin_ns, window_end_ns AS end_ns,"
        " lead(t_ns) OVER (PARTITION BY folder ORDER BY step) - t_ns AS wait,"
        " floor(50 * (t_ns - begin_ns) / (end_ns - begin_ns)) AS bin"
        " FROM window_steps w JOIN runs USING (folder) WHERE concurrency > 1 AND pair_id = (SELECT min(pair_id)"
        " FROM runs r WHERE r.counted AND (r.setup, r.model, r.profile) = (w.setup, w.model, w.profile)))"
        " WHERE wait > 0 AND bin < 50 AND running IS NOT NULL"
        " GROUP BY setup, model, profile, arm, bin, begin_ns, end_ns"
        " ORDER BY setup, model, profile, arm, bin",
    ),
}
Panels = Sequence[tuple[str, Sequence[tuple[Any, ...]]]]  # title and rows


@dataclass(frozen=True)
class Row:
    """One arm in a dot plot. `hollow`: points of another kind (cold cache)."""

    label: str
    points: Sequence[float]
    mean: float | None
    lo: float | None
    hi: float | None
    hollow: Sequence[float]


def draw(con: duckdb.DuckDBPyConnection, name: str, mark: str, single: bool) -> str | None:
    """The chart `name` of a table, or None if there is nothing to draw. `mark` goes before the title; `single`: the
    report has one setup, which need not be named."""
    *texts, sql = _DOT_PLOTS[name] if name in _DOT_PLOTS else _XY_PLOTS[name]
    panels = [
        (" · ".join(part for part in (model, profile, None if single else setup) if part), [row[3:] for row in rows])
        for (setup, model, profile), rows in groupby(con.execute(sql).fetchall(), key=lambda row: row[:3])
    ]
    if not panels:
        return None
    plot = dot_plot if name in _DOT_PLOTS else scatter if name == "steps" else lines
    return plot(mark + texts[0], panels, *texts[1:])


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that lie in low..high."""
    if high <= low:
        return [low]
    step = 10 ** floor(log10((high - low) / count))
    step = next(step * f for f in (1, 2, 5, 10) if (high - low) / (step * f) <= count)
    return [round(i * step, 10) for i in range(ceil(low / step), floor(high / step) + 1)]


def _scale(values: Sequence[float], begin: float, end: float) -> tuple[Callable[[float], float], list[float]]:
    low, high = min(values), max(values)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    low, high = low - margin, high + margin
    return lambda v: begin + (v - low) / (high - low) * (end - begin), ticks(low, high)


def _svg(title: str, body: list[str], height: float) -> str:
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height:.0f}"'
        f' width="{_WIDTH}" height="{height:.0f}"><title>{escape(title)}</title>{_STYLE}{"".join(body)}</svg>'
    )


def _text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(content)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _dot(x: float, y: float, hint: str, style: str = "p") -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{style}"><title>{escape(hint)}</title></circle>'


def dot_plot(title: str, panels: Panels, unit: str) -> str:
    """A panel a cell, a row an arm: points, mean (thick mark), 95% interval (thin line); a scale each.

    The points set the scale: an interval that reaches far beyond them is cut at the edge.
    """
    body = [_text(0, 14, title, "h")]
    y = 24.0
    for name, cells in panels:
        rows = [Row(*cell) for cell in cells]
        values = [v for r in rows for v in (*r.points, *r.hollow)]
        spread = max(values) - min(values) or abs(max(values)) * 0.02
        low, high = min(values) - spread / 2, max(values) + spread / 2
        ends = [x for r in rows for x in (r.lo, r.hi) if x is not None and low <= x <= high]
        place, marks = _scale([*values, *ends], _LEFT, _WIDTH - _RIGHT)
        top = y + 24
        bottom = top + 22 * len(rows)
        body.append(_text(0, y + 16, f"{name}, {unit}", "d"))
        for mark in marks:
            body.append(_line(place(mark), top, place(mark), bottom))
            body.append(_text(place(mark), bottom + 14, f"{mark:g}", "d", "middle"))
        for number, row in enumerate(rows):
            middle = top + 22 * number + 11
            body.append(_text(_LEFT - 10, middle + 4, row.label, "", "end"))
            if row.lo is not None and row.hi is not None:
                left, right = max(place(row.lo), _LEFT), min(place(row.hi), _WIDTH - _RIGHT)
                body.append(_line(left, middle, right, middle, "i"))
            for i, v in enumerate(row.points):  # spread up and down, so that equal ones can be told apart
                shift = (i % 5 - min(2, (len(row.points) - 1) / 2)) * 2.5
                body.append(_dot(place(v), middle + shift, f"{row.label}: {v:g} {unit}"))
            body += [_dot(place(v), middle, f"{row.label}, cold cache: {v:g} {unit}", "o") for v in row.hollow]
            if row.mean is not None:
                body.append(_line(place(row.mean), middle - 8, place(row.mean), middle + 8, "m"))
        y = bottom + 22
    return _svg(title, body, y + 4)


def _frame(
    name: str, points: Sequence[tuple[Any, ...]], top: float, x_name: str, y_name: str
) -> tuple[list[str], Callable[[float], float], Callable[[float], float]]:
    """Heading, grid and axes of a panel of (label, x, y), and its scales."""
    left, right, begin, end = 60, _FRAME_RIGHT, top + 28, top + 188
    x, x_marks = _scale([p[1] for p in points], left, right)
    y, y_marks = _scale([p[2] for p in points], end, begin)
    body = [_text(0, top + 16, f"{name}: {y_name} against {x_name}", "d")]
    for mark in x_marks:
        body.append(_line(x(mark), begin, x(mark), end))
        body.append(_text(x(mark), end + 14, f"{mark:g}", "d", "middle"))
    for mark in y_marks:
        body.append(_line(left, y(mark), right, y(mark), "i" if mark == 0 else ""))
        body.append(_text(left - 6, y(mark) + 4, f"{mark:g}", "d", "end"))
    body.append(_text((left + right) / 2, end + 30, x_name, "d", "middle"))
    return body, x, y


def lines(title: str, panels: Panels, x_name: str, y_name: str) -> str:
    """A panel a cell, a line a label: told apart by dashes, named at its end in order of height."""
    body, top = [_text(0, 14, title, "h")], 24.0
    for name, points in panels:
        frame, x, y = _frame(name, points, top, x_name, y_name)
        body += frame
        series = [(label, list(group)) for label, group in groupby(points, key=lambda point: point[0])]
        free = top + 28
        for label, group in sorted(series, key=lambda item: -item[1][-1][2]):
            dashes = _DASHES[[name for name, _ in series].index(label) % len(_DASHES)]
            path = " ".join(f"{x(px):.1f},{y(py):.1f}" for _, px, py in group)
            body.append(f'<polyline points="{path}" class="l" stroke-dasharray="{dashes}"/>')
            free = max(free + 13, y(group[-1][2]) + 4)
            body.append(
                f'<polyline points="{_FRAME_RIGHT + 8},{free - 4:.1f} {_FRAME_RIGHT + 38},{free - 4:.1f}"'
                f' class="l" stroke-dasharray="{dashes}"/>'
            )
            body.append(_text(_FRAME_RIGHT + 44, free, label))
        top = max(top + 224, free + 10)
    return _svg(title, body, top + 4)


def scatter(title: str, panels: Panels, x_name: str, y_name: str) -> str:
    """A panel a cell; points are (label, x, y), each place labelled once with all that lie there. Points
    without a label are joined to a line."""
    body, top, right = [_text(0, 14, title, "h")], 24.0, _FRAME_RIGHT
    for name, points in panels:
        frame, x, y = _frame(name, points, top, x_name, y_name)
        body += frame
        begin, end = top + 28, top + 188
        line = " ".join(f"{x(px):.1f},{y(py):.1f}" for label, px, py in points if label is None)
        body.append(f'<polyline points="{line}" class="c"/>')
        places: dict[tuple[float, float], dict[str, None]] = {}
        for label, px, py in (point for point in points if point[0] is not None):
            places.setdefault((px, py), {})[label] = None
        free = begin
        for (px, py), labels in sorted(places.items(), key=lambda item: (-item[0][1], item[0][0])):
            body.append(_dot(x(px), y(py), f"{', '.join(labels)}: {px:g} {x_name}, {py:g} {y_name}"))
            free = first = max(free + 13, y(py) + 4)
            for number, label in enumerate(labels):
                free = first + 13 * number
                body.append(_text(right + 8, free, f"{label} ({px:g}, {py:g})"))
            body.append(_line(x(px) + 5, y(py), right + 4, first - 4))
        top = max(end + 36, free + 10)
    return _svg(title, body, top + 4)
