"""What the instruments cost: an arm without them, its order in pairs, its gates, and the table of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.db import connect, read_tables
from analysis.evidence import read_evidence
from analysis.formats.run_record import parse_run_record
from analysis.gates import judge
from analysis.load import load
from analysis.validate import judge_run
from runner.config import changed_keys, config_fingerprint, load_config, parse_config
from runner.errors import ConfigError
from runner.launcher import ENGINE_SIDE, EngineHost
from runner.plan import build_plan, prime_for, resolve_flags
from runner.run import execute_run
from runner.store import Store
from tests import make_store
from tests.make_config import TOML, toml
from tests.make_store import synthetic_run, write_header
from tests.test_run import Make, make, names  # noqa: F401

ROOT = Path(__file__).parent.parent
CONFIG = load_config(ROOT / "campaign.toml")
BARE = ("[profile.small]", "[arm.graphs_bare]\nflags = []\ninstruments = false\n[profile.small]")

# -- what is planned -----------------------------------------------------------------------------------------


def test_pairs_are_run_in_the_order_abba() -> None:
    plan = build_plan(CONFIG, ["overhead"])
    assert [run.arm for run in plan.runs] == ["graphs", "graphs_bare", "graphs_bare", "graphs"] * 2
    assert len(plan.blocks) == 4
    assert {run.seed for run in plan.blocks[0].runs()} == {plan.blocks[0].seed}


def test_the_arm_without_instruments_needs_no_first_start_and_no_pool_of_its_own() -> None:
    assert [prime.prime_id for prime in build_plan(CONFIG, ["overhead"]).primes] == ["32b.graphs.prime"]
    assert prime_for(CONFIG, "graphs_bare") == "graphs"
    measured = {"graphs": 2144}
    assert resolve_flags(CONFIG, "32b", "graphs_bare", measured) == resolve_flags(CONFIG, "32b", "graphs", measured)


def test_two_orders_of_one_cell_are_refused() -> None:
    again = '[[suite.more]]\nmodels = ["32b"]\narms = ["graphs"]\nprofiles = ["sustained_short"]\n'
    with pytest.raises(ConfigError, match=r"suite.more\[1\].order: 32b.sustained_short has the order abba elsewhere"):
        parse_config(CONFIG.text + again, CONFIG.path)


def test_a_store_of_before_takes_in_the_suite(tmp_path: Path) -> None:
    shipped = json.loads((ROOT / "results/enforce_eager/campaign.json").read_bytes())["configuration"]
    assert changed_keys(shipped, config_fingerprint(CONFIG)) == []
    with Store.open(tmp_path, parse_config(TOML, Path("campaign.toml"))):
        pass
    with Store.open(tmp_path, parse_config(toml(BARE), Path("campaign.toml"))):
        pass
    with pytest.raises(ConfigError, match=r"changed: arms.graphs_bare.instruments"):
        Store.open(tmp_path, parse_config(toml(BARE).replace("instruments = false", ""), Path("c.toml")))


# -- a run without instruments -------------------------------------------------------------------------------


def test_off_means_no_plug_in_no_metrics_flag(tmp_path: Path) -> None:
    host = EngineHost("python3", (), tmp_path, tmp_path, "vllm")
    argv = host.serve_argv(CONFIG, CONFIG.models["32b"], 1, 0.5, ("--x",))
    bare = host.serve_argv(CONFIG, CONFIG.models["32b"], 1, 0.5, ("--x",), False)
    assert [flag for flag in argv if flag not in bare] == ["--cudagraph-metrics"]
    on, off = (host.environment(CONFIG, marker="m", plug_in=plug_in)[1]["PYTHONPATH"] for plug_in in (True, False))
    assert str(ENGINE_SIDE) in on
    assert str(ENGINE_SIDE) not in off


def test_a_run_without_instruments_is_valid_and_says_so(make: Make) -> None:  # noqa: F811
    ctx = make(arm="graphs_bare", edit=BARE)
    record = execute_run(ctx)
    assert record.status == "valid", record.reasons
    assert not record.instruments
    assert {"bench.json", "requests.parquet"} <= names(ctx)
    assert not {"steps.parquet", "telemetry.parquet"} & names(ctx)
    assert "--cudagraph-metrics" not in record.serve_argv
    assert ("instruments_off", "warning") in [(r.code, r.severity) for r in record.reasons]


def test_the_same_folder_without_the_declaration_is_invalid(make: Make) -> None:  # noqa: F811
    ctx = make(arm="graphs_bare", edit=BARE)
    record = execute_run(ctx).model_copy(update={"instruments": True})
    assert "step_trace_missing" in [r.code for r in judge_run(ctx.directory, record).reasons]


def test_instruments_that_were_on_all_the_same_are_found(tmp_path: Path) -> None:
    write_header(tmp_path)
    folder = synthetic_run(tmp_path, "32b", "graphs", "sustained", 1, ("graphs",))
    record = parse_run_record((folder / "run.json").read_bytes(), folder.name)
    found = judge(*read_evidence([(folder, record.model_copy(update={"instruments": False}))]))
    assert {(r.code, r.severity) for r in found} == {("instruments_off", "warning"), ("instruments_not_off", "invalid")}


# -- the table -----------------------------------------------------------------------------------------------


def table(root: Path, repetitions: int, speed: float, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    write_header(root)
    monkeypatch.setitem(make_store.SPEED, "graphs_bare", speed)
    monkeypatch.setattr("random.Random.uniform", lambda _self, low, high: (low + high) / 2)
    for repetition in range(1, repetitions + 1):
        for arm in (arms := ("graphs", "graphs_bare")):
            off = arm == "graphs_bare"
            synthetic_run(root, "32b", arm, "sustained", repetition, arms, telemetry=not off, instruments=not off)
    load(root, root.with_name(root.name + ".duckdb"))
    with connect(root.with_name(root.name + ".duckdb")) as con:
        found = next(t for t in read_tables(con) if t.name == "15_instruments")
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


@pytest.mark.parametrize(
    ("repetitions", "speed", "verdict"),
    [
        (4, 0.995, "at most 1%"),
        (4, 0.9, "more than 1%"),
        (3, 0.995, "not resolved: 3 of 4 pairs"),
        (1, 1.0, "not resolved: 1 of 4 pairs"),
    ],
)
def test_the_verdict_is_that_of_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repetitions: int, speed: float, verdict: str
) -> None:
    (row,) = table(tmp_path, repetitions, speed, monkeypatch)
    assert row["verdict"] == verdict
    assert row["lost_pct"]["n"] == row["on_first"] == repetitions
    assert (row["lost_pct"]["lo"] is None) == (repetitions == 1)
    lost_pct = 100 * (1 - float(row["on_tok_s"]) / float(row["off_tok_s"]))
    assert float(row["lost_pct"]["mean"]) == pytest.approx(lost_pct, abs=0.3)


def test_without_pairs_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(tmp_path, 0, 1.0, monkeypatch) == []
