"""The published study beside the data: its figures, the audit of them, its claims and what a data set declares."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import analysis.claims
from analysis.claims import check
from analysis.db import Table, connect, read_tables
from analysis.errors import LoadError
from analysis.load import load
from report.cells import text
from report.render import render
from runner.cli import main
from tests import make_store

ANALYSIS = Path(analysis.claims.__file__).parent
CONFIG = ANALYSIS.parent / "campaign.toml"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("claims")
    load(make_store.synthetic_store(folder / "store", repetitions=3, edges=False), folder / "d.duckdb")
    return folder / "d.duckdb"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    folder = tmp_path_factory.mktemp("claims")
    load(make_store.recorded_store(folder / "store"), folder / "r.duckdb")
    return tables(folder / "r.duckdb")


def tables(database: Path) -> dict[str, Table]:
    with connect(database) as con:
        return {table.name[3:]: table for table in read_tables(con)}


def records(table: Table, **keys: str) -> list[dict[str, str]]:
    rows = [dict(zip(table.columns, map(text, row), strict=True)) for row in table.rows]
    return [row for row in rows if keys.items() <= row.items()]


def answers_of(tables: dict[str, Table]) -> dict[str, str]:
    """Of each question all that the answer in words says."""
    answers: dict[str, str] = {}
    for r in records(tables["in_words"]):
        answers[r["question"]] = answers.get(r["question"], "") + f"{r['cell']}: {r['answer']}\n"
    return answers


def verdicts(database: Path) -> dict[str, tuple[Any, ...]]:
    with connect(database) as con:
        rows = con.execute("SELECT id, verdict, reason, expected, differs FROM claims").fetchall()
    return {row[0]: row[1:] for row in rows}


def test_claims_are_well_formed(database: Path) -> None:
    claims = tomllib.loads((ANALYSIS / "claims.toml").read_text())["claim"]
    assert len({claim["id"] for claim in claims}) == len(claims) >= 25
    for claim in claims:
        assert claim["claim"]
        assert claim["place"]
        assert claim["cells"]
        assert claim["unit"], claim["id"]
        assert ("above" in claim) + ("below" in claim) + ("tolerance" in claim) == 1, claim["id"]
        assert "published" in claim or "tolerance" not in claim, claim["id"]
    assert set(verdicts(database)) == {claim["id"] for claim in claims}


def test_published_figures_name_unit_and_place() -> None:
    for name, figure in tomllib.loads((ANALYSIS / "published.toml").read_text()).items():
        assert figure["place"], name
        assert "unit" in figure, name


def test_verdicts(database: Path) -> None:
    found = verdicts(database)
    assert found["throughput_sign_7b_sustained"][:2] == ("reproduced", "")
    assert found["throughput_sign_32b_sustained"][0] == "not reproduced"  # in this store graphs win everywhere
    assert found["no_preemption_32b_sustained"][0] == "not reproduced"
    assert found["throughput_size_7b_sustained"][:2] == ("not testable", "a figure of the card H100")
    assert "trained weights" in found["energy_sign_32b"][1]
    assert found["no_drift"][1].startswith("needs 5 runs with graphs and eager of 32b.sporadic (there are 3), ")
    assert found["padding_is_the_loss"][1].endswith("(there are 0)")


def measured(database: Path, *ids: str) -> list[Any]:
    with connect(database) as con:
        found = dict(con.execute("SELECT id, measured FROM claims").fetchall())
    return [found[name] for name in ids]


def test_one_cold_start_is_no_verdict(database: Path) -> None:
    assert verdicts(database)["cold_compile_32b"][:2] == ("not testable", "n = 1 has no interval")


def test_claims_count_the_runs_behind_them(database: Path) -> None:
    """Counts, maxima and quotients of means: the true n, and no interval."""
    names = ("runs_do_not_overlap", "spread_1pct", "no_drift", "same_work_32b_sustained", "itl_equals_tpot")
    found = measured(database, *names, "init_accounted_32b")
    assert [m["n"] for m in found] == [24, 24, 24, 6, 6, 6]
    assert {m["lo"] for m in found} == {None}
    assert found[0]["mean"] == 0


def test_claims_on_several_figures_have_an_interval(database: Path) -> None:
    names = (
        "start_difference_grows",
        "sign_flips_with_overload",
        "sporadic_repays_sooner_7b",
        "gain_shrinks_with_model",
    )
    for found in measured(database, *names):
        assert found["lo"] < found["mean"] < found["hi"]
        assert found["n"] >= 3


def test_what_single_runs_do_not_tell_is_not_measured(tmp_path: Path) -> None:
    database = declared(tmp_path / "d.duckdb", "", repetitions=1)
    for found in measured(database, "runs_do_not_overlap", "no_drift", "spread_1pct", "sign_flips_with_overload"):
        assert found is None or found["mean"] is None
    # a claim on the overloaded cell is not judged on another
    assert measured(database, "itl_equals_tpot", "same_work_32b_sustained") == [None, None]


def test_an_interval_that_holds_the_bound_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_store.write_header(tmp_path / "store")
    for repetition, slow in ((1, "eager"), (2, "graphs"), (3, "eager")):
        for arm in ("graphs", "eager"):
            monkeypatch.setitem(make_store.SPEED, arm, 1.1 if arm == slow else 1.0)
            make_store.synthetic_run(root, "7b", arm, "sustained", repetition, ("graphs", "eager"))
    load(root, tmp_path / "d.duckdb")
    assert verdicts(tmp_path / "d.duckdb")["throughput_sign_7b_sustained"][:2] == (
        "not testable",
        "the interval includes 1.0",
    )


def test_a_simulated_engine_tests_no_claim(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    for arm in ("graphs", "eager"):
        make_store.synthetic_run(root, "7b", arm, "sustained", 1, ("graphs", "eager"), simulated=True, gpu=None)
    load(root, tmp_path / "d.duckdb")
    assert {row[:2] for row in verdicts(tmp_path / "d.duckdb").values()} == {
        ("not testable", "the engine is simulated")
    }


def declared(database: Path, content: str, repetitions: int = 3) -> Path:
    """A database of one cell whose results folder declares `content`."""
    root = make_store.write_header(database.with_suffix(".store"))
    for repetition in range(1, repetitions + 1):
        for arm in ("graphs", "eager"):
            make_store.synthetic_run(root, "7b", arm, "sustained", repetition, ("graphs", "eager"))
    (root / "expected-claims.toml").write_text(content)
    load(root, database)
    return database


def test_check_fails_only_when_a_declared_claim_differs(tmp_path: Path) -> None:
    good = 'reproduced = ["throughput_sign_7b_sustained"]\nnot_reproduced = ["overload_7b_sustained"]\n'
    for name, content, code, said in (
        ("nothing", "", 0, "0 declared by the data set, 0 differ"),
        ("good", good, 0, "2 declared by the data set, 0 differ"),
        ("bad", good + 'not_testable = ["decode_sign_7b_sustained"]\n', 3, "DIFFERS: declared not testable"),
    ):
        database = declared(tmp_path / f"{name}.duckdb", content)
        result = CliRunner().invoke(main, ["check", "--database", str(database)])
        assert (result.exit_code, said in result.output) == (code, True), result.output
    assert len(check(database)[0].splitlines()) == len(verdicts(database)) + 1
    assert check(database)[0].endswith("differ")


def test_check_says_what_its_verdicts_are_without(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "s")
    make_store.synthetic_run(root, "7b", "eager", "sustained", 1, ("eager",))
    make_store.synthetic_run(root, "7b", "graphs", "sustained", 1, ("graphs",), short=3)
    (make_store.synthetic_run(root, "7b", "eager", "sustained", 2, ("eager",)) / "run.json").write_text("{")
    load(root, tmp_path / "d.duckdb")
    assert check(tmp_path / "d.duckdb")[0].endswith("0 differ; 2 runs set aside; 1 unreadable")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('reproduced = ["no_drift_at_all"]', "reproduced: no such claim: no_drift_at_all"),
        ('confirmed = ["no_drift"]', "confirmed: no such verdict"),
        ("reproduced =", "Invalid value"),
    ],
)
def test_bad_declarations_are_named(tmp_path: Path, content: str, told: str) -> None:
    with pytest.raises(LoadError, match=rf"expected-claims\.toml: {told}"):
        declared(tmp_path / "d.duckdb", content, repetitions=0)


@pytest.mark.parametrize(
    ("figure", "recomputed", "agrees"),
    [
        ("requests in decode", "graphs 24.6, eager 27.4", "no"),
        ("pool of the 32B", "34493 tokens = 8.42 GiB", "not considered"),
        ("engine steps", "graphs 2196, eager 1939: +13.3%", "not considered"),
        ("7B sustained at 4096", "0.25x", "no"),
        ("tokens/J", "graphs 64148, eager 64095", "yes"),
        ("inverse change of mean power", "-1.82%", "yes"),
        ("starts of the 32B", "n = 9", "no"),
        ("7B sustained, requests", "2429", "yes"),
    ],
)
def test_audit(recorded: dict[str, Table], figure: str, recomputed: str, agrees: str) -> None:
    (row, *_) = (r for r in records(recorded["audit"]) if figure in r["figure"])
    assert recomputed in row["recomputed"]
    assert row["agrees"] == agrees


def test_audit_follows_the_published_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tomllib.loads((ANALYSIS / "published.toml").read_text())
    figures["tpot_ms"]["32b"]["sustained"]["graphs"] = 39.105
    real = analysis.claims._toml
    monkeypatch.setattr(analysis.claims, "_toml", lambda p: figures if p.name == "published.toml" else real(p))
    load(make_store.write_header(tmp_path / "store"), tmp_path / "d.duckdb")
    assert "graphs 12.3, eager 27.4" in records(tables(tmp_path / "d.duckdb")["audit"])[0]["recomputed"]


def test_model_predicts_the_recorded_arms(recorded: dict[str, Table]) -> None:
    rows = records(recorded["steps_model"])
    assert {r["arm"] for r in rows} == {"graphs", "eager", "graphs_kv_matched", "compile_only"}
    for row in rows:
        assert abs(float(row["model_less_measured_pct"])) <= 0.1
        assert row["preempted"] == f"{row['preempted_by_the_model']}.0 (n = 1)"


def test_equal_work_and_littles_law(recorded: dict[str, Table]) -> None:
    assert {r["output_tokens"] for r in records(recorded["same_work"])} == {"64000"}
    for row in records(recorded["littles_law"]):
        assert row["in_decode_by_requests"] == row["tokens_per_s_times_tpot"]
    (graphs,) = records(recorded["littles_law"], arm="graphs")
    assert graphs["in_decode_by_requests"] == "20.3 (n = 1)"
    shares = ("running_by_steps", "waiting_by_steps", "in_flight_by_steps", "kv_pool_in_use_by_steps_pct")
    running, waiting, in_flight, kv_pct = (float(graphs[c].partition(" ")[0]) for c in shares)
    assert running + waiting == pytest.approx(in_flight, abs=0.1)
    assert 80 < kv_pct < 100


def test_unstable_figures_name_the_next_step(recorded: dict[str, Table]) -> None:
    (row,) = records(recorded["stability"], arm="graphs", figure="output_tok_s")
    assert row["note"] == "may be unstable: one block: no interval"
    assert "campaign run --suite published --blocks '32b.sustained.*'" in row["next_step"]


def test_the_next_step_of_an_unstable_figure_runs_its_arm(recorded: dict[str, Table]) -> None:
    rows = [r for r in records(recorded["stability"]) if "campaign run" in r["next_step"]]
    assert {"graphs", "graphs_kv_matched"} <= {r["arm"] for r in rows}
    for row in rows:
        arguments = shlex.split(row["next_step"].partition("campaign run ")[2])
        planned = CliRunner().invoke(main, ["plan", "--config", str(CONFIG), *arguments])
        assert planned.exit_code == 0, planned.output
        assert f"{row['model']}.{row['arm']}." in planned.output


def test_one_block_has_no_p(recorded: dict[str, Table]) -> None:
    alone = records(recorded["effects"]) + records(recorded["throughput"])
    assert len(alone) > 5
    assert {r["p"] for r in alone} <= {"", "none"}


def test_answer_in_words(recorded: dict[str, Table]) -> None:
    answers = answers_of(recorded)
    cost = answers["What does --enforce-eager cost?"]
    assert "32b sustained: Output tokens/s against graphs and torch.compile: -11.3% (n = 1), not resolved" in cost
    lose = answers["What can make graphs lose?"]
    assert "output tokens/s -4.7% (n = 1), not resolved" in lose
    assert "graphs did not lose in what was measured" in lose
    assert "together with the change in padding" in lose
    assert "alone" not in lose
    assert "open until graphs_unpadded is measured" in lose
    assert answers["Is it padding to captured sizes?"].startswith("all: Not measured")
    assert "start shorter" not in " ".join(answers.values())
    study = answers["Why did they lose in the study?"]
    assert "needs +13.3% engine steps while requests wait (2196 for 1939)" in study
    assert "only if a step is over 11.7% shorter. There it was 3.40% shorter" in study
    decoding, _, told = study.partition("equal pools and ")[2].partition(
        " requests decoding, graphs change a decode step by "
    )
    quiet = told.partition("%")[0]
    p10 = {r["arm"]: r["p10_ms"].partition(" ")[0] for r in records(recorded["pace"]) if r["decoding"] == decoding}
    assert float(quiet) == pytest.approx(100 * (float(p10["graphs_kv_matched"]) / float(p10["eager"]) - 1), abs=0.1)
    told = answers["What to set?"]
    assert "32b sustained: No advice yet between graphs and eager: graphs have 1.128 (n = 1)" in told
    assert "--max-cudagraph-capture-size" not in told


def test_price(database: Path, tmp_path: Path) -> None:
    for price, shown in ((None, "no price given"), (3.0, "(n = 3)")):
        render(database, tmp_path, price)
        lines = (tmp_path / "csv" / "14_cost.csv").read_text().splitlines()[1:]
        assert len(lines) == 12
        assert all(line.rstrip('"').endswith(shown) for line in lines)
