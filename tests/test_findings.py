"""FINDINGS.md: made from the results that ship, up to date, its words bound to verdicts and n; and the data's size."""

from __future__ import annotations

import json
import re
from math import exp
from pathlib import Path

import pytest

from analysis.db import connect, read_tables
from analysis.load import load
from report.render import render
from tests import make_store

ROOT = Path(__file__).parent.parent
LARGEST_MB = 25


def page(results: Path, work: Path, name: str = "FINDINGS.md") -> str:
    load(results, work / "d.duckdb")
    render(work / "d.duckdb", work / "out")
    return (work / "out" / name).read_text(encoding="utf-8")


def row(text: str, cell: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {cell} |"))
    return [part.strip() for part in line.strip("|").split("|")]


def answers(text: str, question: str) -> list[str]:
    """Lines under a question of the answer in words."""
    return text.partition(f"**{question}**\n\n")[2].partition("\n\n")[0].splitlines()


def test_the_page_is_that_of_the_results(tmp_path: Path) -> None:
    (results,) = (path.parent for path in (ROOT / "results").glob("*/campaign.json"))
    assert (ROOT / "FINDINGS.md").read_text(encoding="utf-8") == page(results, tmp_path), "run `make provenance`"


@pytest.mark.parametrize(
    ("repetitions", "verdict"), [(1, "one block: no interval"), (2, "not resolved: two blocks"), (5, "graphs higher")]
)
def test_the_words_are_those_that_n_allows(tmp_path: Path, repetitions: int, verdict: str) -> None:
    text = page(make_store.synthetic_store(tmp_path / "r", repetitions=repetitions, edges=False), tmp_path)
    load, blocks, machines, beside, _, ratio, said = row(text, "32b sporadic")[1:]
    assert (blocks, machines, beside, said) == (str(repetitions), "1", "0", verdict)
    assert re.fullmatch(r"\d+ requests, 1 at once, \d+ in, \d+ out", load)
    assert ("[" in ratio) == (repetitions > 1)
    if repetitions < 3:
        assert "graphs higher" not in text
        assert "not resolved (n = 1)" in text or "not resolved" in text
    assert "Not measured: needs the suite" in text


def decimals(text: str) -> set[float]:
    return {abs(float(number)) for number in re.findall(r"\d+\.\d+", text.replace(",", ""))}


def test_every_measured_figure_of_the_readme_stands_in_the_findings() -> None:
    findings = decimals((ROOT / "FINDINGS.md").read_text(encoding="utf-8"))
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shipped = decimals(page[page.index("What ships so far") : page.index("[FINDINGS.md](FINDINGS.md)")])
    assert len(shipped) > 15
    assert shipped <= findings
    assert decimals("a ratio of 7.07 [2.363, -0.22]") - findings == {7.07}  # one that stands nowhere is found out


def test_the_head_and_the_readme_say_how_often_the_power_limit_binds(tmp_path: Path) -> None:
    findings = (ROOT / "FINDINGS.md").read_text(encoding="utf-8")
    (binds,) = re.findall(r"(\S+ to \S+%) of a 32b sustained window", findings)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"power limit was active in {binds} of the samples of a 32B sustained window" in readme
    root = make_store.write_header(tmp_path / "r")
    make_store.synthetic_run(root, "7b", "eager", "sustained", 1, ("eager",), telemetry=True)
    assert "it binds in 26% of a 7b sustained window" in page(root, tmp_path)


def test_the_studys_loss_is_computed_where_no_step_here_can_be_set_beside_it(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "r")
    for arm in ("graphs", "eager"):
        make_store.synthetic_run(root, "32b", arm, "sustained", 1, ("graphs", "eager"))
    text = page(root, tmp_path)
    (answer,) = answers(text, "Why did they lose in the study?")
    assert answer.endswith("it measured -5.15% output tokens/s.")


@pytest.mark.parametrize("budget", [72.8, 130.0, None])
def test_overload_that_the_memory_budget_makes_is_called_near_circular(tmp_path: Path, budget: float | None) -> None:
    root = make_store.write_header(tmp_path / "r")
    header = json.loads((root / "campaign.json").read_text())
    header["configuration"]["engine"] = {"memory_budget_gib": budget}
    (root / "campaign.json").write_text(json.dumps(header))
    for arm in ("graphs", "eager"):
        make_store.synthetic_run(root, "7b", arm, "sporadic", 1, ("graphs", "eager"))
    text, so = page(root, tmp_path), budget == 72.8
    assert ("The memory budget of 72.8 GiB was set so that" in text) == so
    (claim,) = (line for line in text.splitlines() if "Queue overload is 0.0x" in line)
    assert claim.startswith("| reproduced |")
    pool = "was set so that the KV pool equals that of the study's 80 GB card"
    assert (f"(near circular: the memory budget of 72.8 GiB {pool})" in claim) == so
    report = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert ("Set so that the KV pool equals that of the study's 80 GB card" in report) == so


def test_a_cell_of_the_study_without_a_run_is_not_measured(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "r")
    header = make_store.CONFIGURATION | {"models": {"7b": {}}, "profiles": {"sporadic": {}, "sustained": {}}}
    (root / "campaign.json").write_text(
        (root / "campaign.json")
        .read_text()
        .replace(*(make_store.json.dumps(c) for c in (make_store.CONFIGURATION, header)))
    )
    make_store.synthetic_run(root, "7b", "eager", "sustained", 1, ("eager",))
    text = page(root, tmp_path)
    assert row(text, "7b sporadic")[1:] == ["none ran", "0", "0", "0", "none", "not measured", "not measured"]
    assert row(text, "7b sustained")[2:] == ["1", "1", "0", "eager", "not measured", "not measured"]


def test_a_simulated_campaign_says_so(tmp_path: Path) -> None:
    root = make_store.synthetic_store(tmp_path / "r", repetitions=1, simulated=True, gpu=None, edges=False)
    text = page(root, tmp_path, "FINDINGS.SIMULATED.md")
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert all(line.lstrip("# ").startswith("SIMULATED: ") for line in headings)


def test_the_data_that_ships_is_small() -> None:
    used = sum(path.stat().st_size for path in (ROOT / "results").rglob("*") if path.is_file())
    assert used <= LARGEST_MB * 1e6


def test_a_machine_counts_once_however_many_blocks_it_ran(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "r")
    for repetition, machine in ((1, "boot-1"), (2, "boot-2"), (3, "boot-2")):
        for arm in ("graphs", "eager"):
            make_store.synthetic_run(root, "7b", arm, "sporadic", repetition, ("graphs", "eager"), machine_id=machine)
    page(root, tmp_path)
    with connect(tmp_path / "d.duckdb") as con:
        (table,) = (t for t in read_tables(con) if t.name == "09_machines")
        logs = con.execute("""SELECT ln(a.bench_output_tok_s / b.bench_output_tok_s)
            FROM runs a JOIN runs b USING (pair_id)
            WHERE a.arm = 'graphs' AND b.arm = 'eager' ORDER BY a.repetition""").fetchall()
    starts, found = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (starts["profile"], starts["blocks"], starts["start_difference_s"]["n"]) == ("(all)", [1, 2], 2)
    one, two, three = (log for (log,) in logs)
    assert found["blocks"] == [1, 2]
    assert found["graphs_over_eager"]["n"] == 2
    assert [float(p) for p in found["points"]] == [round(exp(one), 3), round(exp((two + three) / 2), 3)]


def test_the_steps_that_the_pool_costs_are_told_where_it_bounds_the_load() -> None:
    told = answers((ROOT / "FINDINGS.md").read_text(encoding="utf-8"), "What can make graphs lose?")
    with_steps = [re.sub(r" \\\[.*\\\]", "", answer) for answer in told if "Engine steps while requests wait" in answer]
    assert [answer.split("*")[1] for answer in with_steps] == ["32b sustained", "32b sustained\\_varied"]
    for answer in with_steps:  # measured, and by a model that knows only the pools and the requests' lengths
        measured, model = map(float, re.findall(r"([+-][\d.]+)%", answer))
        assert abs(measured - model) < 1


def test_advice_that_rests_on_stalls_is_provisional() -> None:
    told = answers((ROOT / "FINDINGS.md").read_text(encoding="utf-8"), "What to set?")
    assert any(answer.startswith("- *32b sustained*: Graphs, provisionally: ") for answer in told)
    assert any(answer.startswith("- *7b sustained*: Graphs: ") for answer in told)
