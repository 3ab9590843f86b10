"""The rendered report: self-contained, the same bytes for the same data, and honest about what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import duckdb
import pytest
from click.testing import CliRunner

from analysis.db import CHARTS, Table, connect, read_head, read_tables
from analysis.errors import LoadError
from analysis.load import load
from report.cells import markdown
from report.charts import draw
from report.compare import pairs
from report.render import render
from report.scale import scale, ticks
from runner.cli import main
from tests import make_store


def build(folder: Path, **options: object) -> Path:
    load(make_store.synthetic_store(folder / "store", repetitions=2, **options), folder / "d.duckdb")  # type: ignore[arg-type]
    return folder / "d.duckdb"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def out(database: Path) -> Path:
    render(database, database.parent / "out")
    return database.parent / "out"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated")
    render(build(folder, simulated=True, gpu=None, telemetry=False), folder / "out")
    return folder / "out"


class Page(HTMLParser):
    """Collects tags left open, headings, addresses."""

    VOID = ("meta", "link", "br", "hr", "img", "circle", "line", "polyline")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] in (["h1"], ["h2"]):
            self.headings.append(data)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_html_is_well_formed_and_needs_no_network(out: Path) -> None:
    html = (out / "report.html").read_text()
    page = Page(html)
    assert page.open == []
    assert page.addresses
    assert all(a.startswith(("#", "data:text/csv;base64,")) for a in page.addresses)
    assert "http" not in html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"<script|@import|url\(", html)
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_each_table_has_sql_row_count_and_csv(out: Path) -> None:
    html, md = (out / "report.html").read_text(), (out / "report.md").read_text()
    names = [p.stem for p in sorted((out / "csv").glob("*.csv"))]
    assert len(names) >= 18
    for name in names:
        assert f'id="{name}"' in html
        assert all(f"SQL ({name}.sql)" in text for text in (html, md))
        assert f"(csv/{name}.csv)" in md
    assert html.count("Rows: ") == md.count("Rows: ") == len(names)


def test_charts_stand_beside_their_tables_and_are_xml(out: Path) -> None:
    html, md = (out / "report.html").read_text(), (out / "report.md").read_text()
    names = sorted(p.stem for p in CHARTS.glob("*.sql"))
    assert len(names) == 11
    assert sorted(p.stem for p in (out / "charts").glob("*.svg")) == names
    for path in (out / "charts").glob("*.svg"):
        ElementTree.fromstring(path.read_text())
        assert path.read_text() in html
        assert f"(charts/{path.name})" in md
        assert all(f"SQL of the chart ({path.stem}.sql)" in text for text in (html, md))
    points = len(re.findall("<circle", (out / "charts" / "throughput.svg").read_text()))
    assert points == 2 * 2 * 3 * 2 + 3  # models, profiles, arms, repetitions, and the block run again
    joins = len(re.findall('class="j"', (out / "charts" / "throughput.svg").read_text()))
    assert joins == points * 2 / 3  # three arms a block


def test_chart_of_energy_has_the_line_of_the_gpu_at_rest(database: Path, out: Path, tmp_path: Path) -> None:
    assert 'class="r"' not in (out / "charts" / "power.svg").read_text()  # it was not measured
    shutil.copy(database, tmp_path / "d.duckdb")
    with connect(tmp_path / "d.duckdb", read_only=False) as con:
        con.execute("INSERT INTO sitting_facts SELECT DISTINCT sitting_id, 'gpu.idle.sensor_mw', '70000' FROM runs")
        svg, _ = draw(con, "power", "", True)
    assert svg is not None
    assert svg.count('class="r"') == 4
    assert svg.count(">100<") == 4  # the scale reaches down to it


def elements(svg: str | None, tag: str) -> list[ElementTree.Element]:
    """In the order drawn."""
    assert svg is not None
    return list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}" + tag))


def texts(svg: str | None) -> list[str]:
    return [text.text or "" for text in elements(svg, "text")]


def test_effects_share_a_log_axis_and_say_n() -> None:
    con = duckdb.connect()
    con.execute("""CREATE TABLE effects AS SELECT 'H200' AS setup, '7b' AS model, profile, 'graphs' AS arm_a,
        'eager' AS arm_b, 'output_tok_s' AS metric, points,
        struct_pack(mean := points[1], lo := lo, hi := points[1] + 0.1) AS ratio
        FROM (VALUES ('a', [1.1e0], NULL), ('b', [1.21], NULL), ('c', [1.3, 1.3], 1.2)) AS t(profile, points, lo)""")
    svg, _ = draw(con, "effects", "", True)
    none = {float(line.get("x1", "")) for line in elements(svg, "line") if line.get("class") == "r"}
    assert len(none) == 1
    small, great, *_ = (float(circle.get("cx", "")) - min(none) for circle in elements(svg, "circle"))
    assert great == pytest.approx(2 * small, abs=0.2)  # 1.21 = 1.1 x 1.1
    assert [t for t in texts(svg) if "n = " in t][:2] == ["1.100, n = 1: no interval", "1.210, n = 1: no interval"]
    assert texts(svg).count("1.300 [1.200, 1.400], n = 2") == 1
    assert len([line for line in elements(svg, "line") if line.get("class") == "i"]) == 1


def test_break_even_that_never_comes_is_said_and_an_endless_interval_has_an_arrow() -> None:
    con = duckdb.connect()
    con.execute("""CREATE TABLE break_evens AS SELECT 'H200' AS setup, '7b' AS model, 'a' AS profile, *
        FROM (VALUES ('graphs', 15.0, 5.0, 'inf'::DOUBLE), ('compile_only', 'inf'::DOUBLE, 4.0, 'inf'::DOUBLE))
        AS t(arm, requests, fewest, most)""")
    con.execute("""CREATE TABLE repayments AS SELECT 'H200' AS setup, '7b' AS model, 'a' AS profile, *
        FROM (VALUES ('graphs', 1, 10.0, 1.0), ('graphs', 2, 20.0, 1.0), ('compile_only', 1, 9.0, -1.0),
        ('compile_only', 2, 9.0, 0.0)) AS t(arm, pair_id, extra_s, saving_s)""")
    svg, _ = draw(con, "break_even", "", True)
    assert len(elements(svg, "circle")) == 2  # blocks that repay it
    assert {"15.00 [5.000, never], n = 2", "never [4.000, never], n = 2"} < set(texts(svg))
    assert [t for t in texts(svg) if t in ("←", "→")] == ["←", "→"]


def test_an_axis_begins_at_0_or_says_that_it_does_not(out: Path) -> None:
    power, throughput, steps = (
        (out / "charts" / f"{name}.svg").read_text() for name in ("power", "throughput", "steps")
    )
    assert texts(power).count("0") == len([t for t in texts(power) if t.endswith(", W")]) == 4
    assert len([t for t in texts(throughput) if t.endswith("tokens/s (axis does not begin at 0)")]) == 4
    assert "0" not in texts(throughput)
    for axis in ("KV blocks", "7b · sustained: steps while requests wait"):
        assert f"{axis} (axis does not begin at 0)" in texts(steps)


def test_bars_of_all_panels_share_a_scale(out: Path) -> None:
    for name in ("mechanism", "start_parts", "padding"):
        svg = (out / "charts" / f"{name}.svg").read_text()
        marks = [(t.text, t.get("x")) for t in elements(svg, "text") if t.get("text-anchor") == "middle"]
        assert len({marks.count(mark) for mark in marks}) == 1
        assert any(t.startswith("n = ") for t in texts(svg))


def test_points_of_the_study_are_hollow_and_no_line_leads_out_of_the_panel(out: Path) -> None:
    svg = (out / "charts" / "overload.svg").read_text()
    assert [circle.get("class") for circle in elements(svg, "circle")].count("o l6") == 5
    assert len(elements(svg, "circle")) == 9
    assert {"ratio of output tokens/s (log axis)", *"123456789"} < set(texts(svg))
    assert len([t for t in texts(svg) if t.endswith("], n = 2")]) == 3  # and a cell of three blocks
    right = max(float(line.get("x2", "")) for line in elements(svg, "line"))
    assert right < min(
        float(t.get("x", "")) for t in elements(svg, "text") if "published" in (t.text or "") and t.get("x") != "0.0"
    )
    of_7b = {t.partition("  ")[2] for t in texts(svg) if re.match(r"\d  (published|recomputed) 7b", t)}
    assert of_7b == {
        "published 7b sporadic (0, 1.085)",
        "published 7b sustained (2, 1.048)",
        "recomputed 7b sustained (0.25, 1.048)",
    }
    assert "prefers-color-scheme: dark) { .chart { --paper:" in svg  # a chart by itself is readable on a dark screen


def test_chart_and_table_of_running_requests_show_the_same_figures(database: Path, out: Path) -> None:
    panels = {t for t in texts((out / "charts" / "running.svg").read_text()) if "mean over" in t}
    shown = ("running requests", "waiting requests", "KV pool in use, %")
    assert panels == {f"{m} · sustained, {s}: mean over 1/60 of the window" for m in ("32b", "7b") for s in shown}
    with connect(database) as con:
        (table,) = (t for t in read_tables(con) if t.chart == "running")
    assert {"running_by_steps", "waiting_by_steps", "kv_pool_in_use_by_steps_pct"} < set(table.columns)
    assert "first counted block of each cell with more than one request at a time" in table.note


def test_scale() -> None:
    place, marks = scale([0, 0.25, 7.6], 0, 500, "root")
    assert marks == [0, 0.05, 0.2, 0.5, 1, 2, 5]
    assert place(4) == pytest.approx(2 * place(1))
    place, marks = scale([7, 1300], 0, 500, "log")
    assert marks == [10, 20, 50, 100, 200, 500, 1000]
    assert (place(0), place(float("inf"))) == (0, 500)
    place, _ = scale([10, 20], 0, 100, "zero", [-500, 21, 500])
    assert place(0) == place(-500) == 0
    assert place(21) < place(500) == 100


def test_parts_of_bars_add_up(database: Path) -> None:
    with connect(database) as con:
        sql = {
            name: read_head(CHARTS / f"{name}.sql")[1].rstrip(";") for name in ("start_parts", "padding", "mechanism")
        }
        ends = con.execute(f"SELECT max(ends) FROM ({sql['padding']}) GROUP BY setup, model, profile, arm").fetchall()
        assert {round(end, 9) for (end,) in ends} == {100}
        for end, start in con.execute(
            f"SELECT max(ends), any_value(estimate.mean) FROM ({sql['start_parts']}) JOIN estimates"
            " USING (setup, model, arm) WHERE metric = 'start_s' AND estimates.profile = '(all)'"
            " GROUP BY setup, model, arm"
        ).fetchall():
            assert end == pytest.approx(start)
        rows = con.execute(sql["mechanism"]).fetchall()
    tax, total = ([row[6] for row in rows if row[3] == label] for label in ("KV tax", "total"))
    assert len(tax) == 4
    assert tax == pytest.approx(total)


def test_first_paragraph(out: Path, simulated: Path) -> None:
    lead = (out / "report.md").read_text().split("\n\n")[1]
    assert "turns off torch.compile as well as CUDA graphs" in lead
    assert "NVIDIA H200, random weights, vLLM 0.23.0" in lead
    assert "SIMULATED" not in lead
    assert "stand-in engine" in (simulated / "report.SIMULATED.md").read_text().split("\n\n")[1]


def test_simulated_is_said_in_every_heading_chart_and_file_name(simulated: Path, out: Path) -> None:
    assert all("SIMULATED" in name for name in files(simulated))
    page = Page((simulated / "report.SIMULATED.html").read_text())
    assert len(page.headings) >= 19
    assert all(h.startswith("SIMULATED: ") for h in page.headings)
    html = (simulated / "report.SIMULATED.html").read_text()
    assert html.count("<table>") == html.count("<table>\n<caption>SIMULATED: ") > 20  # a copied table takes it along
    assert "<caption>" not in (out / "report.html").read_text()
    headings = re.findall(r"^#+ (.*)", (simulated / "report.SIMULATED.md").read_text(), re.M)
    assert len(headings) >= 20
    assert all(h.startswith("SIMULATED: ") for h in headings)
    for path in (simulated / "charts").glob("*.svg"):
        assert path.read_text().count(">SIMULATED: ") == 2  # the accessible title and the heading drawn
    assert not any("SIMULATED" in name or b"SIMULATED" in content for name, content in files(out).items())


def test_report_of_another_kind_leaves_no_stale_files(database: Path, simulated: Path, tmp_path: Path) -> None:
    render(simulated.parent / "d.duckdb", tmp_path)
    render(database, tmp_path)
    assert not any("SIMULATED" in name for name in files(tmp_path))


def test_report_on_other_runs_is_replaced_only_where_out_is_given(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store, folder = str(database.parent / "store"), tmp_path / "out/report"
    other = str(make_store.write_header(tmp_path / "other", "demo", sittings=("elsewhere",)))
    assert CliRunner().invoke(main, ["report", store]).exit_code == 0
    before = files(folder)
    done = CliRunner().invoke(main, ["report", other])
    assert done.exit_code == 2
    assert "enforce_eager costs and buys: synthetic), not on those of " + other in done.stderr
    assert "--out out/report replaces" in done.stderr
    assert files(folder) == before
    again = CliRunner().invoke(main, ["report", "--database", str(database)])  # the same runs
    assert again.exit_code == 0, again.output
    assert " set aside: " in again.output.splitlines()[0]
    assert CliRunner().invoke(main, ["report", other, "--out", "out/report"]).exit_code == 0
    assert "demo" in (folder / "report.html").read_text()


def test_against_what_is_not_there(database: Path, tmp_path: Path) -> None:
    words = ["report", "--database", str(database), "--out", str(tmp_path), "--against", "NOT_THERE"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, "next: give --against a results folder or a database" in done.stderr) == (2, True)


OTHER_WORLD = """
import locale, os, pathlib, random, sys
from analysis.load import load
from report.render import render
*order, cpus, store, work = sys.argv[1:]
glob = pathlib.Path.glob
if order:
    rng = random.Random(int(order[0]))
    pathlib.Path.glob = lambda self, pattern: iter(rng.sample(found := list(glob(self, pattern)), len(found)))
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cpus)])
locale.setlocale(locale.LC_ALL, "")
load(pathlib.Path(store), pathlib.Path(work) / "d.duckdb")
render(pathlib.Path(work) / "d.duckdb", pathlib.Path(work) / "out")
"""


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small campaign's store and its report."""
    folder = tmp_path_factory.mktemp("once")
    load(make_store.synthetic_store(folder / "store", repetitions=1, arms=("graphs", "eager")), folder / "d.duckdb")
    render(folder / "d.duckdb", folder / "out")
    return folder


@pytest.mark.parametrize(
    ("environment", "order", "cpus"),
    [
        ({}, [], 64),  # twice in a row
        ({}, ["1"], 64),
        ({"LC_ALL": "C.UTF-8", "LANG": "de_DE.UTF-8"}, [], 64),
        ({"TZ": "Asia/Kathmandu"}, [], 64),
        ({"PYTHONHASHSEED": "7"}, [], 64),
        ({}, [], 1),
    ],
    ids=["twice", "shuffled files", "locale", "time zone", "hash seed", "one CPU"],
)
def test_same_bytes(once: Path, environment: dict[str, str], order: list[str], cpus: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER_WORLD, *order, str(cpus), str(once / "store"), str(tmp_path)]
    subprocess.run(command, env=os.environ | environment, check=True, cwd=Path(__file__).parent.parent)
    assert files(tmp_path / "out") == files(once / "out")


def table(*rows: tuple[object, ...]) -> Table:
    return Table("t", "", ("setup", "arm", "x", "n"), frozenset(), rows, "t")


def test_rows_that_belong_together_are_compared_and_others_told() -> None:
    mine = table(("H200", "eager", 1.5, 3), ("H200", "graphs", 2.0, 3), ("H200", "mine", None, 1))
    theirs = table(("H100", "theirs", 9.0, 1), ("H100", "graphs", 2.5, 3), ("H100", "eager", 1.5, 3))
    assert pairs(mine, theirs, (1, 2, 3), "SIMULATED: ") == [
        [("eager", None), ("1.5", None), ("3", None)],
        [("graphs", None), ("2.0", "SIMULATED: 2.5"), ("3", None)],
        [("mine", "no such row"), ("not measured", None), ("1", None)],
        [("no such row", "SIMULATED: theirs"), ("–", "SIMULATED: 9.0"), ("–", "SIMULATED: 1")],
    ]


def test_report_against_the_same_data_and_against_other(database: Path, simulated: Path, tmp_path: Path) -> None:
    render(database, tmp_path / "same", against=database)
    html = (tmp_path / "same" / "report.html").read_text()
    assert "Compared with campaign synthetic" in html
    assert html.count("cells that differ: 0 ·") == html.count("cells that differ") >= 18
    other = tmp_path / "other"
    done = CliRunner().invoke(
        main, ["report", "--database", str(database), "--against", str(simulated.parent / "store"), "--out", str(other)]
    )
    assert done.exit_code == 0, done.output
    assert "against " in done.output
    assert done.output.splitlines()[-1] == str(other / "report.SIMULATED.html")
    html, md = ((other / f"report.SIMULATED.{kind}").read_text() for kind in ("html", "md"))
    assert Page(html).open == []
    marked = re.findall(r"<mark>([^<]*)</mark> <span class=\"other\">([^<]*)</span>", html)[1:]  # the first explains
    assert marked
    assert all(theirs.startswith("SIMULATED: ") or theirs == "no such row" for _, theirs in marked)
    assert md.count(" ≠ SIMULATED: ") > 20
    assert "random weights" in html


def test_markdown_tables_are_even(out: Path) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", (out / "report.md").read_text(), re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_set_aside_runs_are_listed_with_their_evidence(out: Path) -> None:
    html = (out / "report.html").read_text()
    assert "failed: out_of_memory" in html
    assert "short_output: request 3 has 5 tokens, asked for 8" in html
    assert "pass incomplete: no valid run of eager" in html
    assert "runs/7b.graphs.sporadic.r93.p1a1" in html


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store", "<script>alert(1)</script>|x")
    load(root, tmp_path / "d.duckdb")
    render(tmp_path / "d.duckdb", tmp_path / "out")
    assert "<script" not in (tmp_path / "out" / "report.html").read_text()
    assert not re.search(r"(?<!\\)<script", (tmp_path / "out" / "report.md").read_text())
    assert markdown("a|b\nc") == "a\\|b c"


def test_empty_campaign_renders(tmp_path: Path) -> None:
    load(make_store.write_header(tmp_path / "store"), tmp_path / "d.duckdb")
    render(tmp_path / "d.duckdb", tmp_path / "out")
    assert "No run counts yet." in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize("price", ["-1", "0", "x"])
def test_a_price_that_is_none_is_refused(price: str) -> None:
    done = CliRunner().invoke(main, ["report", "--price", price])
    assert (done.exit_code, "'--price'" in done.output) == (2, True)


@pytest.mark.parametrize("command", ["check", "report", "advise"])
def test_a_database_of_something_else_is_named(tmp_path: Path, command: str) -> None:
    with duckdb.connect(str(tmp_path / "other.duckdb")) as con:
        con.execute("CREATE TABLE claims AS SELECT 1 AS id")
    done = CliRunner().invoke(main, [command, "--database", str(tmp_path / "other.duckdb")])
    assert done.exit_code == 2
    assert f"{tmp_path / 'other.duckdb'}: not made by this version's `campaign load`" in done.output
    done = CliRunner().invoke(main, [command, "--database", str(tmp_path)])
    assert (done.exit_code, f"{tmp_path}: a folder, no database" in done.output) == (2, True)


def test_a_folder_and_a_database_are_not_reported_at_once(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["report", str(tmp_path), "--database", str(tmp_path / "d.duckdb")])
    assert (done.exit_code, "not both" in done.output) == (2, True)


def test_bad_places(database: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such database"):
        render(tmp_path / "none.duckdb", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadError, match="cannot be written"):
        render(database, tmp_path / "file")


def test_ticks() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(629.9, 631.7) == [630.0, 630.5, 631.0, 631.5]
