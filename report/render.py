"""The report: one self-contained HTML file, the same in Markdown, a CSV a table and an SVG a chart; PROVENANCE.md and
FINDINGS.md.

Same database content, same bytes: no clock, no locale, no paths of this machine.
"""

from __future__ import annotations

import base64
import html
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.db import FINDINGS, PROVENANCE, Table, connect, read_tables
from analysis.errors import LoadError
from report import cells, charts
from report.compare import Pair, pairs

_TEMPLATES = Path(__file__).parent / "templates"
SIMULATED = "SIMULATED"
_ELSEWHERE = "choose another folder with --out"
_LONG = 32  # characters; longer cells may wrap


@dataclass(frozen=True)
class Section:
    """A table as it is shown: heading, cells as text, style of each column, CSV and chart."""

    table: Table
    title: str
    header: list[str]
    rows: list[list[str]]
    pairs: list[list[Pair]]  # the same beside other data's
    styles: list[str]  # of the columns: n number, w long text
    csv: str
    csv_file: str
    svg: str | None
    svg_file: str
    svg_sql: str

    @property
    def differing(self) -> int:
        """Cells that differ from the other data's."""
        return sum(other is not None for row in self.pairs for _, other in row)

    @property
    def csv_uri(self) -> str:
        return "data:text/csv;base64," + base64.b64encode(self.csv.encode()).decode()


def render(database: Path, out: Path, price: float | None = None, against: Path | None = None) -> list[Path]:
    """Write the report of `database` into `out`; returns the files written, the HTML first. `price`: of a GPU-hour;
    `against`: a database whose figures stand beside those that differ.

    Files of an earlier report in `out` that this one does not write are removed. Raises LoadError when the database is
    missing or of another version, or `out` cannot be written.
    """
    other, others = None, dict[str, Table]()
    if against is not None:
        with connect(against) as con:
            con.execute("SET VARIABLE price_per_gpu_hour = ?", [price])
            other, others = _facts(con), {table.name: table for table in read_tables(con)}
    with connect(database) as con:
        con.execute("SET VARIABLE price_per_gpu_hour = ?", [price])
        facts = _facts(con) | {"other": other}
        facts["suffix"] = facts["suffix"] or (other or facts)["suffix"]
        sections = [_section(con, table, facts, others.get(table.name)) for table in read_tables(con)]
        provenance = [_section(con, table, facts) for table in read_tables(con, PROVENANCE)]
        findings = [_section(con, table, facts) for table in read_tables(con, FINDINGS)]
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES, encoding="utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=lambda name: name is not None and name.startswith("report.html"),
    )
    environment.filters["md"] = cells.markdown
    named, files = {s.table.name: s for s in sections}, {}
    for page in ("report.html", "report.md", "PROVENANCE.md", "FINDINGS.md"):
        text = environment.get_template(f"{page.lower()}.j2").render(
            facts=facts, sections=sections, named=named, provenance=provenance, findings=findings
        )
        files[page.replace(".", f"{facts['suffix']}.")] = text
    files |= {s.csv_file: s.csv for s in sections}
    files |= {s.svg_file: s.svg for s in sections if s.svg}
    return _write(out, files)


def check_folder(out: Path, sittings: set[str], source: Path) -> None:
    """Raise LoadError where `out` holds a report on runs of none of these sittings, which are those of `source`."""
    try:
        runs = _text(out, "csv/*_runs*.csv")
        if runs.count("\n") <= 1 or any(sitting in runs for sitting in sittings):
            return
        title = html.unescape(", ".join(re.findall("<title>(.*)</title>\n<style>", _text(out, "report*.html"))))
    except (OSError, ValueError) as error:
        raise LoadError(f"{out} cannot be read: {error}", _ELSEWHERE) from error
    told = f"{out} holds a report on other runs ({title}), not on those of {source}: it is not replaced"
    raise LoadError(told, f"name another folder with --out DIR; --out {out} replaces what is there")


def _text(out: Path, pattern: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(out.glob(pattern)))


def _write(out: Path, files: dict[str, str]) -> list[Path]:
    try:
        for pattern in ("report*.html", "report*.md", "PROVENANCE*.md", "FINDINGS*.md", "csv/*.csv", "charts/*.svg"):
            for old in out.glob(pattern):
                old.unlink()
        for name, content in files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(content.encode("utf-8"))
    except OSError as error:
        raise LoadError(f"{out} cannot be written: {error}", _ELSEWHERE) from error
    return [out / name for name in files]


def _facts(con: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """What the head of the report says, and how simulated figures are marked in headings and file names."""
    cursor = con.execute("FROM summary")
    names = [column[0] for column in cursor.description or ()]
    facts: dict[str, Any] = dict(zip(names, cursor.fetchone() or (), strict=True))
    mark, suffix = (f"{SIMULATED}: ", f".{SIMULATED}") if facts["simulated"] else ("", "")
    return facts | {"single": len(facts["setups"]) <= 1, "mark": mark, "suffix": suffix}


def _section(
    con: duckdb.DuckDBPyConnection, table: Table, facts: dict[str, Any], other: Table | None = None
) -> Section:
    """Format a table. A `setup` that is the same throughout the report is left to the head and the CSV."""
    shown = [i for i, column in enumerate(table.columns) if not (column == "setup" and facts["single"])]
    rows = [[cells.text(row[i]) for i in shown] for row in table.rows]
    both = pairs(table, other, shown, facts["other"]["mark"] if other else "")
    numbers = [any(cells.is_number(row[i]) for row in table.rows) for i in shown]
    svg, svg_sql = charts.draw(con, table.chart, facts["mark"], facts["single"]) if table.chart else (None, "")
    long = [any(len(text or "") > _LONG for row in both for text in row[k]) for k in range(len(shown))]
    return Section(
        table=table,
        title=facts["mark"] + table.title,
        header=[cells.heading(table.columns[i]) for i in shown],
        rows=rows,
        pairs=both,
        styles=["n" if number else "w" if wrap else "" for number, wrap in zip(numbers, long, strict=True)],
        csv=cells.to_csv(table),
        csv_file=f"csv/{table.name}{facts['suffix']}.csv",
        svg=svg,
        svg_file=f"charts/{table.chart}{facts['suffix']}.svg",
        svg_sql=svg_sql,
    )
