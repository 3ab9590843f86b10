"""Charts as SVG: every point shown, arms named in words, colours for a light and a dark page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, log10

import duckdb

_WIDTH, _LEFT, _RIGHT = 760, 150, 24
_STYLE = (
    "<style>.chart{--ink:#1d2329;--dim:#667079;--line:#d4d9de;--hot:#0b62a8;font:12px system-ui,sans-serif}"
    "@media (prefers-color-scheme:dark){.chart{--ink:#e3e7ea;--dim:#9aa5ae;--line:#3b444c;--hot:#6db6f2}}"
    ".chart text{fill:var(--ink)}.chart .d{fill:var(--dim)}.chart .h{font-weight:600}"
    ".chart line{stroke:var(--line)}"
    ".chart .m{stroke:var(--ink);stroke-width:2}.chart .i{stroke:var(--ink);stroke-width:1}"
    ".chart .p{fill:var(--hot);fill-opacity:.65}"
    ".chart .o{fill:none;stroke:var(--hot);stroke-width:1.5}</style>"
)


@dataclass(frozen=True)
class Row:
    """One arm in a dot plot. `hollow`: points of another kind (cold cache)."""

    label: str
    points: tuple[float, ...]
    mean: float | None = None
    lo: float | None = None
    hi: float | None = None
    hollow: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    title: str
    rows: tuple[Row, ...] = field(default=())


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
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}">'
        f"<title>{escape(title)}</title>{_STYLE}{''.join(body)}</svg>"
    )


def _text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(content)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _dot(x: float, y: float, hint: str, style: str = "p") -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{style}"><title>{escape(hint)}</title></circle>'


def dot_plot(title: str, panels: Sequence[Panel], unit: str) -> str:
    """A panel a cell, a row an arm: points, mean (thick mark), 95% interval (thin line); a scale each.

    The points set the scale: an interval that reaches far beyond them is cut at the edge.
    """
    body = [_text(0, 14, title, "h")]
    y = 24.0
    for panel in panels:
        values = [v for r in panel.rows for v in (*r.points, *r.hollow)]
        spread = max(values) - min(values) or abs(max(values)) * 0.02
        low, high = min(values) - spread / 2, max(values) + spread / 2
        ends = [x for r in panel.rows for x in (r.lo, r.hi) if x is not None and low <= x <= high]
        place, marks = _scale([*values, *ends], _LEFT, _WIDTH - _RIGHT)
        body.append(_text(0, y + 16, panel.title, "d"))
        top, y = y + 24, y + 24
        bottom = top + 22 * len(panel.rows)
        for mark in marks:
            body += [
                _line(place(mark), top, place(mark), bottom),
                _text(place(mark), bottom + 14, f"{mark:g}", "d", "middle"),
            ]
        body.append(_text(_LEFT - 10, bottom + 14, unit, "d", "end"))
        for row in panel.rows:
            middle = y + 11
            body.append(_text(_LEFT - 10, middle + 4, row.label, "", "end"))
            if row.lo is not None and row.hi is not None:
                left, right = max(place(row.lo), _LEFT), min(place(row.hi), _WIDTH - _RIGHT)
                body.append(_line(left, middle, right, middle, "i"))
            body += [
                _dot(
                    place(v),
                    middle + (i % 5 - min(2, (len(row.points) - 1) / 2)) * 2.5,
                    f"{row.label}: {v:g} {unit}",
                )
                for i, v in enumerate(row.points)
            ]
            body += [
                _dot(place(v), middle, f"{row.label}, cold cache: {v:g} {unit}", "o") for v in row.hollow
            ]
            if row.mean is not None:
                body.append(_line(place(row.mean), middle - 8, place(row.mean), middle + 8, "m"))
            y += 22
        y = bottom + 22
    return _svg(title, body, y + 4)


def scatter(
    title: str, panels: Sequence[tuple[str, Sequence[tuple[str, float, float]]]], x_name: str, y_name: str
) -> str:
    """A panel a cell; points are (label, x, y), each place labelled once with all that lie there."""
    body = [_text(0, 14, title, "h")]
    top = 24.0
    for name, points in panels:
        body.append(_text(0, top + 16, f"{name}: {y_name} against {x_name}", "d"))
        begin, end = top + 28, top + 188
        x, x_marks = _scale([p[1] for p in points], 60, _WIDTH - 270)
        y, y_marks = _scale([p[2] for p in points], end, begin)
        for mark in x_marks:
            body += [
                _line(x(mark), begin, x(mark), end),
                _text(x(mark), end + 14, f"{mark:g}", "d", "middle"),
            ]
        for mark in y_marks:
            body += [
                _line(60, y(mark), _WIDTH - 270, y(mark)),
                _text(54, y(mark) + 4, f"{mark:g}", "d", "end"),
            ]
        body.append(_text((60 + _WIDTH - 270) / 2, end + 30, x_name, "d", "middle"))
        places: dict[tuple[float, float], list[str]] = {}
        for label, px, py in points:
            labels = places.setdefault((px, py), [])
            if label not in labels:
                labels.append(label)
        free = begin
        for (px, py), labels in sorted(places.items(), key=lambda item: (-item[0][1], item[0][0])):
            body.append(_dot(x(px), y(py), f"{', '.join(labels)}: {px:g} {x_name}, {py:g} {y_name}"))
            for label in labels:
                free = max(free + 13, y(py) + 4) if label == labels[0] else free + 13
                body.append(_text(_WIDTH - 262, free, f"{label} ({px:g}, {py:g})"))
            body.append(_line(x(px) + 5, y(py), _WIDTH - 266, free - 4 - 13 * (len(labels) - 1)))
        top = max(end + 36, free + 10)
    return _svg(title, body, top + 4)


def _cell(setup: str, model: str, profile: str | None, single: bool) -> str:
    return " · ".join(part for part in (model, profile, None if single else setup) if part)


def draw(con: duckdb.DuckDBPyConnection, name: str, mark: str, single: bool) -> str | None:
    """The chart `name` of a table, or None if there is nothing to draw. `mark` goes before the title."""
    return {"throughput": _throughput, "cold_start": _cold_start, "steps": _steps}[name](con, mark, single)


def _estimates(
    con: duckdb.DuckDBPyConnection, metric: str, all_profiles: bool
) -> dict[tuple[str, str, str], list[Row]]:
    rows = con.execute(
        "SELECT setup, model, profile, arm, points, estimate.mean, estimate.lo, estimate.hi FROM estimates"
        " WHERE metric = ? AND (profile = '(all)') = ? ORDER BY setup, model, profile, arm",
        [metric, all_profiles],
    ).fetchall()
    cells: dict[tuple[str, str, str], list[Row]] = {}
    for setup, model, profile, arm, points, mean, lo, hi in rows:
        cells.setdefault((setup, model, profile), []).append(Row(arm, tuple(points), mean, lo, hi))
    return cells


def _throughput(con: duckdb.DuckDBPyConnection, mark: str, single: bool) -> str | None:
    panels = [
        Panel(_cell(*cell, single), tuple(rows))
        for cell, rows in _estimates(con, "output_tok_s", False).items()
    ]
    return (
        dot_plot(f"{mark}Throughput by cell and arm: every run, mean and 95% interval", panels, "tokens/s")
        if panels
        else None
    )


def _cold_start(con: duckdb.DuckDBPyConnection, mark: str, single: bool) -> str | None:
    cells = {
        (setup, model): {row.label: row for row in rows}
        for (setup, model, _), rows in _estimates(con, "start_s", True).items()
    }
    cold = con.execute(
        "SELECT setup, model, arm, list(start_s ORDER BY folder) FROM starts"
        " WHERE (kind = 'prime' OR NOT warm) AND start_s IS NOT NULL GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    for setup, model, arm, points in cold:
        arms = cells.setdefault((setup, model), {})
        warm = arms.get(arm, Row(arm, ()))
        arms[arm] = Row(arm, warm.points, warm.mean, warm.lo, warm.hi, tuple(points))
    panels = [
        Panel(_cell(s, m, None, single), tuple(arms[a] for a in sorted(arms)))
        for (s, m), arms in sorted(cells.items())
    ]
    return (
        dot_plot(
            f"{mark}Cold start, exec to /health: warm cache (filled) and first starts or cold cache (hollow)",
            panels,
            "s",
        )
        if panels
        else None
    )


def _steps(con: duckdb.DuckDBPyConnection, mark: str, single: bool) -> str | None:
    rows = con.execute(
        "SELECT setup, model, profile, arm, kv_blocks, steps FROM run_figures JOIN runs USING (folder)"
        " WHERE steps IS NOT NULL AND kv_blocks IS NOT NULL ORDER BY setup, model, profile, arm, folder"
    ).fetchall()
    cells: dict[tuple[str, str, str], list[tuple[str, float, float]]] = {}
    for setup, model, profile, arm, blocks, steps in rows:
        cells.setdefault((setup, model, profile), []).append((arm, blocks, steps))
    panels = [(_cell(*cell, single), points) for cell, points in cells.items()]
    return (
        scatter(
            f"{mark}Engine steps in the waiting span against KV blocks: every run",
            panels,
            "KV blocks",
            "steps",
        )
        if panels
        else None
    )
