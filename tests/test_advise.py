"""Advice for a server: against recorded arms it was not fitted to and the published cells."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analysis.advise import (
    BREAK_EVEN,
    BY_MODEL,
    CHANGE,
    NO_PREFILL,
    REAL_STEPS,
    RESOLUTION,
    RUNS,
    STEPS,
    TOK_S,
    Advice,
    Figure,
    answer,
    as_text,
)
from analysis.db import connect
from analysis.errors import LoadError
from analysis.load import load
from runner.cli import main
from tests import make_store

ROOT = Path(__file__).parent.parent
SHAPES = {"7b": "28,4,128,2", "32b": "64,8,128,2"}
LOAD = {"input_tokens": 1024, "output_tokens": 128}
KV = {"7b": "graphs=1040000", "32b": "graphs=34493"}  # the study's 1.04M tokens; 64 x 4096 / 7.6
STEP_MS = {"7b": "graphs=9.11,eager=9.93", "32b": "graphs=38.00,eager=39.34"}  # TPOT at concurrency 1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advise")
    load(make_store.recorded_store(folder / "store"), folder / "r.duckdb")
    return folder / "r.duckdb"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advise")
    load(ROOT / "results" / "enforce_eager", folder / "d.duckdb")
    return folder / "d.duckdb"


def given(**options: Any) -> Advice:
    (advice,) = answer(None, LOAD | options)
    return advice


def value(advice: Advice, row: str, arm: str) -> float:
    return advice.rows[row][arm].value


@pytest.mark.parametrize("data", ["recorded", "shipped"])
def test_throughput_of_arms_it_was_not_fitted_to(data: str, request: pytest.FixtureRequest) -> None:
    off = {}
    for advice in answer(request.getfixturevalue(data), {}, "*.sustained"):
        (words,) = (line for line in advice.words if line.startswith("The model is fitted to graphs and eager; what"))
        for arm, real in advice.rows[TOK_S].items():
            if real.basis != "measured" or arm in ("graphs", "eager"):
                continue
            if arm == "compile_only":  # no graphs, yet not eager
                assert arm not in advice.rows[BY_MODEL]
                assert f"compile_only none for {real.value:,.0f} measured (its steps are like neither's)" in words
                continue
            model = value(advice, BY_MODEL, arm)
            off[advice.title[:3], arm] = 100 * (model / real.value - 1)
            assert abs(model / real.value - 1) <= RESOLUTION, (advice.title, arm)
            told = f"{arm} {model:,.0f} for {real.value:,.0f} measured ({100 * (model / real.value - 1):+.1f}%)"
            assert told in words
    assert {arm for _, arm in off} >= {"graphs_kv_matched"} | ({"eager_kv_matched"} if data == "shipped" else set())
    greatest = max(off.values(), key=abs)  # told in the docs
    page = (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")
    assert data != "shipped" or f"the greatest deviation is {greatest:+.1f}%" in page


def test_every_arm_that_was_run_is_compared_as_in_the_report(shipped: Path) -> None:
    """Changes, break-evens and warnings are the report's, over the blocks that both arms ran in."""
    with connect(shipped) as con:
        sql = (
            "SELECT e.setup, e.model, e.profile, arm_a, ratio.mean, verdict, e.n, requests, b.n FROM effects e"
            " LEFT JOIN break_evens b ON (b.setup, b.model, b.profile, b.arm) = (e.setup, e.model, e.profile, arm_a)"
            " WHERE metric = 'output_tok_s' AND arm_b = 'eager'"
        )
        report = {
            (f"{model} {profile}, {setup}", arm): row for setup, model, profile, arm, *row in con.sql(sql).fetchall()
        }
        sql = "SELECT model || ' ' || profile || ', ' || setup, arm, warnings FROM cell_warnings"
        warnings = {(cell, f"Warnings of runs of {arm}: {text}") for cell, arm, text in con.sql(sql).fetchall()}
    seen = set()
    for advice in answer(shipped, {}):
        cell = advice.title.partition(": ")[0]
        assert {(cell, line) for line in advice.warnings} == {row for row in warnings if row[0] == cell}
        assert all(line in as_text([advice]).splitlines() for line in advice.warnings)
        for arm, figure in advice.rows[TOK_S].items():
            if figure.basis != "measured" or arm == "eager":
                continue
            seen.add((cell, arm))
            ratio, verdict, blocks, requests, starts = report[cell, arm]
            assert advice.rows[CHANGE][arm] == Figure(100 * (ratio - 1), "measured", verdict, blocks)
            assert advice.rows[BREAK_EVEN][arm] == Figure(requests, "measured", "", starts)
    assert seen == report.keys()
    assert warnings


def test_an_arm_that_ran_in_one_block_is_compared_in_that_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever eager did in another block, and with starts that are given too."""
    root, arms = make_store.write_header(tmp_path / "store"), ("graphs", "eager", "graphs_kv_matched")
    for arm in arms:
        make_store.synthetic_run(root, "7b", arm, "sustained", 1, arms)
    with monkeypatch.context() as slow:
        slow.setitem(make_store.SPEED, "eager", 50 * make_store.SPEED["eager"])
        for arm in arms[:2]:
            make_store.synthetic_run(root, "7b", arm, "sustained", 2, arms[:2])
    load(root, tmp_path / "d.duckdb")
    (advice,), (restarted,) = (answer(tmp_path / "d.duckdb", o) for o in ({}, {"start_s": "graphs_trimmed=99"}))
    with connect(tmp_path / "d.duckdb") as con:
        sql = "SELECT arm, output_tok_s, start_s FROM runs JOIN run_figures USING (folder) WHERE repetition = 1"
        ran = {arm: (rate, start) for arm, rate, start in con.sql(sql).fetchall()}
    rate, eager = ran["graphs_kv_matched"][0], ran["eager"][0]
    for one in (advice, restarted):
        assert one.rows[CHANGE]["graphs_kv_matched"].basis == "measured"
        assert value(one, CHANGE, "graphs_kv_matched") == pytest.approx(100 * (rate / eager - 1))
        assert one.rows[CHANGE]["graphs_kv_matched"].n == one.rows[BREAK_EVEN]["graphs_kv_matched"].n == 1
        assert one.rows[CHANGE]["graphs"].n == 2
    saving = (1 / eager - 1 / rate) * 8
    extra = ran["graphs_kv_matched"][1] - ran["eager"][1]
    repaid = max(extra, 0) / saving if saving > 0 else float("inf")
    assert value(restarted, BREAK_EVEN, "graphs_kv_matched") == pytest.approx(repaid)
    assert rate / value(advice, TOK_S, "eager") > 1.2 * rate / eager  # of unpaired means it would be far off
    (given_start,) = answer(tmp_path / "d.duckdb", {"start_s": "graphs=99"})
    assert given_start.rows[BREAK_EVEN]["graphs"].basis == "computed"
    assert given_start.rows[BREAK_EVEN]["graphs_kv_matched"] == advice.rows[BREAK_EVEN]["graphs_kv_matched"]


def test_an_arm_that_was_run_is_not_said_not_to_be(shipped: Path) -> None:
    options = {"step_ms": "graphs=20,eager=28", "output_tok_s": "eager=600"}
    (advice,) = answer(shipped, options, "32b.sustained")
    assert "graphs_trimmed" in advice.rows[RUNS]
    assert "--max-cudagraph-capture-size=64" in advice.words[-1]
    assert "; run, though not as given)" in advice.words[-1]
    assert "not run" not in advice.words[-1]


def test_steps_of_recorded_arms(recorded: Path) -> None:
    (advice,) = answer(recorded, {})
    assert {arm: value(advice, STEPS, arm) for arm in advice.arms if arm != "graphs_trimmed"} == {
        "graphs": 2456,
        "graphs_kv_matched": 2198,
        "eager": 2198,
    }
    assert value(advice, STEPS, "graphs_trimmed") == pytest.approx(2200, rel=0.01)
    assert advice.rows[STEPS]["graphs"].basis == "computed"
    assert advice.rows[STEPS]["graphs_trimmed"].basis == "computed*"
    assert value(advice, "KV tokens", "graphs_trimmed") == pytest.approx(32848, rel=0.001)  # recorded: 2053 blocks


@pytest.mark.parametrize(
    ("model", "concurrency", "sign"), [("7b", 1, 1), ("7b", 64, 1), ("32b", 1, 1), ("32b", 64, -1)]
)
def test_sign_of_the_published_cells(model: str, concurrency: int, sign: int) -> None:
    advice = given(
        model_shape=SHAPES[model],
        kv_tokens=KV[model],
        concurrency=concurrency,
        requests=500 if concurrency > 1 else 50,
        step_ms=STEP_MS[model],
    )
    assert value(advice, NO_PREFILL, "graphs") * sign > 0
    assert CHANGE not in advice.rows  # no prefill time
    assert not any(line.startswith("Expected best") for line in advice.words)


@pytest.mark.parametrize(("step", "turns"), [("34.3", True), ("38.00", False)])
def test_sign_turns_with_the_prefill_time_where_prompt_tokens_differ(step: str, turns: bool) -> None:
    options = {"model_shape": SHAPES["32b"], "kv_tokens": KV["32b"], "concurrency": 64, "requests": 500}
    options["step_ms"] = f"graphs={step},eager=39.34"
    words = " ".join(given(**options).words)
    told = re.search(r"The sign turns where 1000 prompt tokens take (\d+) ms", words)
    assert bool(told) == turns
    at = int(told[1]) if told else 283
    changes = [value(given(**options, prefill_ms=ms), CHANGE, "graphs") for ms in (at / 2, at * 2, at * 1000)]
    assert [change > 0 for change in changes] == [turns, False, False]
    if turns:  # the two ends that are told
        assert f"{value(given(**options), NO_PREFILL, 'graphs'):+.1f}% output tokens/s if prefill took no time" in words
        assert f"{changes[2]:+.1f}% if it took all" in words
    assert not any(claim in words for claim in ("however long", "any prefill time"))


@pytest.mark.parametrize("arm", ["eager=333.9", "graphs=316.9"])
@pytest.mark.parametrize(
    ("starts", "requests", "said"),
    [
        ("graphs=56,eager=40", float("inf"), "The longer start is never repaid."),
        ("graphs=40,eager=56", 0, "Graphs start no later."),
    ],
)
def test_size_of_the_published_loss(arm: str, starts: str, requests: float, said: str) -> None:
    advice = given(
        model_shape=SHAPES["32b"],
        kv_tokens=KV["32b"],
        concurrency=64,
        requests=500,
        step_ms=STEP_MS["32b"],
        output_tok_s=arm,
        start_s=starts,
    )
    assert -6 <= value(advice, CHANGE, "graphs") <= -3  # published: -5.15%
    assert value(advice, BREAK_EVEN, "graphs") == requests
    assert said in advice.words
    assert "c*" in as_text([advice])


def test_published_break_evens() -> None:
    for model, starts, requests in (("7b", "graphs=37,eager=30", 70), ("32b", "graphs=55.9,eager=40", 90)):
        advice = given(
            model_shape=SHAPES[model],
            kv_tokens=KV[model],
            concurrency=1,
            requests=50,
            step_ms=STEP_MS[model],
            prefill_ms=100,
            start_s=starts,
        )
        assert value(advice, BREAK_EVEN, "graphs") == pytest.approx(requests, rel=0.06)


def test_kv_pool_by_arithmetic_on_a_card_is_the_measured_one() -> None:
    """32B on an H200 with the budget of 72.8 GiB: 38,080 and 34,304 tokens; 7B: 1,049,952 and 1,040,224."""
    for model, weights, graphs, tokens in (
        ("32b", 61.04, 0.90, (38080, 34304)),
        ("7b", 14.29, 0.51, (1049952, 1040224)),
    ):
        advice = given(
            model_shape=SHAPES[model],
            card_gib=72.8,
            utilization=1,
            weights_gib=weights,
            graph_gib=graphs,
            concurrency=64,
        )
        for arm, real in zip(("eager", "graphs"), tokens, strict=True):
            assert value(advice, "KV tokens", arm) == pytest.approx(real, rel=0.005)
            assert advice.rows["KV tokens"][arm].basis == "computed*"  # the overhead is assumed


def test_without_step_times_the_sign_is_open_and_said_to_be() -> None:
    advice = given(model_shape=SHAPES["32b"], kv_tokens=KV["32b"], concurrency=64)
    assert not any(name.startswith(CHANGE) or name == TOK_S for name in advice.rows)
    assert any(line.startswith("Sign open") for line in advice.words)
    assert not any(line.startswith("Expected best") for line in advice.words)


def test_step_times_of_other_arms_alone_leave_the_sign_of_graphs_open() -> None:
    steps = {"step_ms": "graphs_trimmed=38,eager=39", "prefill_ms": 100}
    advice = given(model_shape=SHAPES["32b"], kv_tokens=KV["32b"], concurrency=64, requests=64, **steps)
    assert advice.words[-1].startswith("Sign open")


def test_what_is_assumed_is_listed_and_given_figures_are_not() -> None:
    few = given(model_shape=SHAPES["32b"], kv_tokens=KV["32b"], concurrency=64, requests=100, range_ratio=0.3)
    assert [line.split(" = ")[0] for line in few.assumed] == [
        "block_size",
        "graph_gib",
        "graph_gib.graphs_trimmed",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
    ]
    told = given(
        kv_tokens="graphs=34493,graphs_trimmed=37700,eager=38600",
        concurrency=64,
        requests=100,
        range_ratio=0,
        block_size=16,
        max_model_len=4096,
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
    )
    assert told.assumed == []
    assert {figure.basis for row in told.rows.values() for figure in row.values()} == {"given", "computed"}


def test_given_figures_take_the_place_of_measured_ones(recorded: Path) -> None:
    (advice,) = answer(recorded, {"concurrency": 16})  # the tokens and number of requests are the measured ones
    assert "changed as given: 500 requests at 16, 1024 tokens in, 128 out" in advice.title
    assert advice.arms == ("graphs", "graphs_trimmed", "graphs_kv_matched", "eager")
    assert any("makes +0.0% engine steps in the window and +0.0% prompt tokens" in line for line in advice.words)
    (smaller,) = answer(recorded, {"kv_tokens": "graphs=20000"})
    assert smaller.rows["KV tokens"]["graphs"].basis == "given"
    for changed in (advice, smaller):  # what was measured there is not shown as of this load or server
        assert {TOK_S, CHANGE} <= changed.rows.keys()
        assert not {REAL_STEPS, BY_MODEL} & changed.rows.keys()
        assert {figure.basis for figure in changed.rows[TOK_S].values()} <= {"computed", "computed*"}
        assert any("expected, not measured" in line for line in changed.words)


def test_measured_figures_come_first_and_fitted_ones_are_marked(shipped: Path) -> None:
    (advice,) = answer(shipped, {}, "32b.sustained")
    for arm in ("graphs", "eager"):
        assert advice.rows["prefill of 1000 tokens, ms"][arm].basis == "fitted"
        assert advice.rows["decode step, ms"][arm].basis == "fitted"
        assert value(advice, BY_MODEL, arm) == pytest.approx(value(advice, TOK_S, arm), rel=1e-9)  # by construction
    assert value(advice, REAL_STEPS, "graphs_kv_matched") == pytest.approx(1940, abs=1)
    (other,) = answer(shipped, {}, "7b.sustained")
    steps = [f"{value(other, REAL_STEPS, arm):,.0f}" for arm in ("graphs", "eager")]
    assert f"makes +0.0% engine steps in the window (measured: {steps[0]} for {steps[1]})" in other.words[0]


def test_advice_from_single_runs_is_not_resolved(recorded: Path) -> None:
    (advice,) = answer(recorded, {})
    assert set(advice.rows[RUNS].values()) == {Figure(1, "measured", n=1)}
    best = advice.words[-1]
    assert best.startswith("No advice on fewer than three blocks; the model expects: ")
    assert re.search(r"% against eager within 2% of the KV pools; not run\); n = 1, not resolved\.$", best)
    assert any(line.endswith("measured in the blocks of both; n = 1, not resolved.") for line in advice.words)


@pytest.mark.parametrize(("n", "verdict"), [(2, "not resolved"), (3, "higher")])
def test_a_figure_has_the_n_of_the_arms_it_compares(tmp_path: Path, n: int, verdict: str) -> None:
    root, arms = make_store.write_header(tmp_path / "store"), ("graphs", "eager", "graphs_kv_matched")
    for repetition in range(1, n + 1):
        of = arms if repetition == 1 else arms[:2]
        for arm in of:
            make_store.synthetic_run(root, "7b", arm, "sustained", repetition, of)
    load(root, tmp_path / "d.duckdb")
    (advice,) = answer(tmp_path / "d.duckdb", {})
    words = advice.words
    repaid = [line for line in words if line.startswith("The longer start is repaid after")]
    if n < 3:
        assert not repaid
        assert "Whether the longer start is repaid is not resolved, as the change is not (n = 2)." in words
    else:
        assert repaid[0].endswith(" requests; n = 3, the report tells what is resolved.")
    assert any(line.endswith(f"measured in the blocks of both; n = {n}, {verdict}.") for line in words)
    assert words[-1].startswith("No advice on fewer than three blocks")
    assert words[-1].endswith("; n = 1, not resolved.")  # of an arm that ran once


@pytest.mark.parametrize(("faster", "said"), [(1.01, "not resolved"), (0.99, "not resolved"), (1.05, "repaid after")])
def test_a_gain_within_the_model_s_error_has_no_break_even(faster: float, said: str) -> None:
    options = {"kv_tokens": "graphs=430000,eager=430000", "concurrency": 8, "start_s": "graphs=50,eager=30"}
    advice = given(**options, step_ms=f"graphs=20,eager={20 * faster}", prefill_ms=0.001)
    assert value(advice, CHANGE, "graphs") == pytest.approx(100 * (faster - 1), abs=0.01)
    (line,) = (line for line in advice.words if "longer start" in line)
    assert said in line
    assert ("graphs" in advice.rows.get(BREAK_EVEN, {})) == (faster > 1 + RESOLUTION)
    if said == "not resolved":
        assert line.endswith("is not resolved, as the change is within the model's error of 2.5%.")


def test_a_measured_gain_that_is_not_resolved_has_no_break_even(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three blocks, the gain in one of them alone."""
    root, arms = make_store.write_header(tmp_path / "store"), ("graphs", "eager")
    for repetition, speed in enumerate((10.0, 1.0, 1.0), 1):
        monkeypatch.setitem(make_store.SPEED, "eager", speed)
        for arm in arms:
            make_store.synthetic_run(root, "7b", arm, "sustained", repetition, arms)
    load(root, tmp_path / "d.duckdb")
    for options in ({}, {"start_s": "graphs=99"}):
        (advice,) = answer(tmp_path / "d.duckdb", options)
        assert value(advice, CHANGE, "graphs") > 100 * RESOLUTION
        assert any(line.endswith("measured in the blocks of both; n = 3, not resolved.") for line in advice.words)
        assert [line for line in advice.words if "longer start" in line] == [
            "Whether the longer start is repaid is not resolved, as the change is not (n = 3)."
        ]


def test_what_the_host_s_stalls_made_is_provisional_as_in_the_findings(shipped: Path) -> None:
    """By the rule of the answer in words: resolved, and less than half is left of it on the log scale."""
    rule = r"^- \*(.*)\*: \S+, provisionally: .*, but ([+-][\d.]+%) computed without .*, less than half of it\.$"
    told = dict(re.findall(rule, (ROOT / "FINDINGS.md").read_text("utf-8"), re.MULTILINE))
    said = "Provisional: computed without the host's stalls, less than half of it is left, "
    found = {}
    for advice in answer(shipped, {}):
        if lines := [line for line in advice.words if line.startswith("Provisional")]:
            found[advice.title.partition(",")[0]] = lines
            assert advice.words[advice.words.index(lines[0]) - 1].startswith("Graphs as they come against eager:")
    assert found == {cell: [f"{said}{left}."] for cell, left in told.items()}
    assert "32b sustained" in found
    (other,) = answer(shipped, {"concurrency": 16}, "32b.sustained")  # of another load nothing is known
    assert not any(line.startswith("Provisional") for line in other.words)


@pytest.mark.parametrize(
    ("card", "budget", "running"), [({}, 8192, 1024), ({"card_gib": 80}, 8192, 1024), ({"card_gib": 69.9}, 2048, 256)]
)
def test_limits_of_a_step_are_the_defaults_of_the_card(card: dict[str, Any], budget: int, running: int) -> None:
    options = {"model_shape": "28,8,128,2", "weights_gib": 15, "graph_gib": 0.5, "concurrency": 300, "requests": 600}
    options |= card or {"kv_tokens": "graphs=430000"}
    advice = given(**options)
    for name, value_, large, small in (
        ("max_num_batched_tokens", budget, 8192, 2048),
        ("max_num_seqs", running, 1024, 256),
    ):
        rule = f"`vllm serve`'s default, {large} on a card of 70 GiB or more that is no A100, {small} on others"
        assert f"{name} = {value_}: {rule}" in advice.assumed
    explicit = given(**options, max_num_batched_tokens=budget, max_num_seqs=running)
    assert {arm: figure.value for arm, figure in explicit.rows[STEPS].items()} == {
        arm: figure.value for arm, figure in advice.rows[STEPS].items()
    }
    assert not any(line.startswith("max_num") for line in explicit.assumed)


def test_measured_limits_of_a_step_are_of_the_card_they_were_measured_on(shipped: Path) -> None:
    for options, told in (
        ({"card_gib": 24}, ["2048", "256"]),
        ({"card_gib": 24, "max_num_batched_tokens": 4096}, ["256"]),
        ({"utilization": 0.9}, ["1024"]),
    ):
        (advice,) = answer(shipped, options, "7b.sustained")
        lines = [line for line in advice.assumed if line.startswith("max_num")]
        assert [line.split(" = ")[1].split(":")[0] for line in lines] == told


def test_two_pools_are_enough_and_the_trimmed_one_is_left_out() -> None:
    pools, log = {"kv_tokens": "graphs=430000,eager=436000", "concurrency": 64, "requests": 64}, "--graph-gib (In a log"
    log += " with graphs, `Estimated CUDA graph memory`)"
    shape = "--model-shape (LAYERS,KV_HEADS,HEAD_DIM,BYTES or the path of the model's config.json)"
    for more, lacking in (
        ({"model_shape": "28,8,128,2"}, log),
        ({"graph_gib": 0.5}, shape),
        ({}, f"{log} and {shape}"),
    ):
        advice = given(**pools, **more)
        assert advice.arms == ("graphs", "graphs_kv_matched", "eager")
        left_out = [line for line in advice.words if "graphs_trimmed" in line]
        assert left_out == [f"No column graphs_trimmed: its KV pool is not known, for want of {lacking}."]
    for whole in (
        {"model_shape": "28,8,128,2", "graph_gib": 0.5},
        {"kv_tokens": "graphs=9000,graphs_trimmed=9100,eager=9200"},
    ):
        advice = given(**pools | whole)
        assert "graphs_trimmed" in advice.arms
        assert not any(line.startswith("No column") for line in advice.words)


def test_load_beyond_the_largest_graph_and_the_engine_s_limit() -> None:
    pool = {"kv_tokens": "graphs=1040000,eager=1050000", "input_tokens": 8, "output_tokens": 32, "requests": 600}
    large = given(**pool, concurrency=600)
    assert large.arms == ("graphs", "graphs_kv_matched", "eager")
    assert "No column graphs_trimmed: no default size below the largest holds this load." in large.words
    assert "steps with more than 512 requests, which no graph holds, take no longer" in large.assumed
    assert any(line.startswith("max_num_seqs = 1024") for line in large.assumed)
    limited = given(**pool | {"graph_gib": 1, "model_shape": SHAPES["7b"]}, concurrency=600, max_num_seqs=128)
    assert not any("no graph holds" in line for line in limited.assumed)
    assert value(limited, STEPS, "eager") > value(large, STEPS, "eager")


def test_config_json_gives_the_shape(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8, "hidden_size": 5120}
    (tmp_path / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    pair = [
        given(model_shape=s, kv_tokens=KV["32b"], concurrency=8) for s in (SHAPES["32b"], str(tmp_path / "config.json"))
    ]
    assert pair[0].rows == pair[1].rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "concurrency is neither measured nor given; give --concurrency"),
        ({"concurrency": "0"}, "--concurrency 0: Input should be greater than 0"),
        ({"concurrency": "1000000"}, "--concurrency 1000000: Input should be less than or equal to 2048"),
        ({"step_ms": "9.1"}, "--step-ms 9.1: ARM=NUMBER"),
        ({"step_ms": "fast=9.1"}, "--step-ms fast"),
        ({"step_ms": "eager=9,eager=8"}, "--step-ms eager=9,eager=8: ARM=NUMBER"),
        ({"step_ms": "eager=nan"}, "--step-ms eager=nan: Input should be a finite number"),
        ({"step_ms": "eager=0.03934"}, "--step-ms eager=0.03934: Input should be greater than or equal to 0.2"),
        ({"card_gib": "81920"}, "--card-gib 81920: Input should be less than or equal to 1000"),
        ({"output_tok_s": "eager=333.9,graphs=500"}, "--output-tok-s eager=333.9,graphs=500: give one arm"),
        ({"output_tok_s": "graphs_trimmed=300"}, "--output-tok-s graphs_trimmed=300: Input should be 'graphs' or"),
        ({"output_tok_s": "eager=300", "prefill_ms": "100"}, "both tell the prefill time; give one of them"),
        ({"concurrency": 4, "kv_tokens": "eager=34493", "output_tok_s": "eager=300"}, "--step-ms eager=… is neither"),
        ({"concurrency": 4, "model_shape": "0,0,0,0"}, "--model-shape 0,0,0,0: Input should be greater than 0"),
        ({"concurrency": 4, "model_shape": "-32,8,128,2"}, "--model-shape -32,8,128,2: Input should be greater than 0"),
        ({"concurrency": 4, "kv_tokens": "graphs=34493,graphs_trimmed=34000,eager=33000"}, "larger than eager's"),
        (
            {"concurrency": 800, "kv_tokens": "graphs=34493,graphs_trimmed=34500,eager=35000"},
            "no kv_tokens.graphs_trimmed; leave it out",
        ),
        ({"concurrency": 4}, "give --model-shape (LAYERS,KV_HEADS,HEAD_DIM,BYTES or the path of the model's config"),
        ({"concurrency": 4, "model_shape": "64,8,128"},
         "--model-shape 64,8,128: LAYERS,KV_HEADS,HEAD_DIM,BYTES or the path of the model's config.json was expected;"),
        ({"concurrency": 4, "model_shape": "/no/config.json"}, "/no/config.json: there is no such file; see"),
        ({"concurrency": 4, "model_shape": "9,9,9,2", "kv_tokens": "eager=34493"},
         "--graph-gib is neither measured nor given; give --graph-gib (In a log with graphs, `Estimated CUDA"),
        ({"concurrency": 4, "kv_tokens": "graphs=34000,eager=34493", "step_ms": "graphs_trimmed=9"},
         "its KV pool is not known, for want of --graph-gib (In a log with graphs"),
        ({"concurrency": 4, "model_shape": "64,8,128,2"}, "the size of the KV pool is not known"),
        ({"concurrency": 4, "model_shape": "64,8,128,2", "card_gib": 40, "weights_gib": 61}, "no memory is left"),
        ({"concurrency": 4, "kv_tokens": "graphs=640,eager=640", "model_shape": "64,8,128,2"}, "the load cannot run"),
        ({"concurrency": 4, "kv_tokens": "graphs=3,eager=3"}, "the load cannot run: num_gpu_blocks is 0"),
        (
            {"concurrency": 64, "kv_tokens": "graphs=34493,eager=38600", "graph_gib": 1, "model_shape": "64,8,128,2",
             "step_ms": "eager=39", "output_tok_s": "eager=5000"},
            "take longer than 5000 tokens/s",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=re.escape(message)):
        given(**options)


def test_command_and_json(shipped: Path) -> None:
    command = ["advise", "--database", str(shipped), "--cell", "32b.sustained"]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    assert "NVIDIA H200, random weights" in told.output
    found = json.loads(CliRunner().invoke(main, [*command, "--json"]).output)
    assert found[0]["rows"][STEPS]["eager"].items() >= {"value": 1941, "basis": "computed"}.items()
    assert found[0]["rows"]["KV tokens"]["eager"]["basis"] == "measured"


def test_what_does_not_go_with_results_is_refused(recorded: Path) -> None:
    with pytest.raises(LoadError, match="--step-ms alone: prefill is fitted to measured steps; add --prefill-ms or"):
        answer(recorded, {"step_ms": "graphs=5"})
    with pytest.raises(LoadError, match=r"^no cell none\.\*; .* --cell: 32b\.sustained$"):
        answer(recorded, {}, "none.*")
    both = CliRunner().invoke(main, ["advise", "no/such/results", "--database", str(shipped)])
    assert (both.exit_code, "not both" in both.output) == (2, True)
    early = CliRunner().invoke(main, ["advise", "no/such/results", "--concurrency", "0"])  # before anything is loaded
    assert early.exit_code == 2
    assert "--concurrency 0: Input should be greater than 0" in early.output


@pytest.mark.parametrize(
    ("name", "said"), [("d.duckdb", "a file"), ("folder", "it has no campaign.json"), ("nowhere", "no such folder")]
)
def test_a_wrong_path_is_named_with_what_it_is(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "d.duckdb").write_bytes(b"DUCK")
    (tmp_path / "folder").mkdir()
    done = CliRunner().invoke(main, ["advise", str(tmp_path / name)])
    assert done.exit_code == 2
    assert f"error: {tmp_path / name} is not a results folder: {said}\n" in done.output
    assert "next: give a results folder that is there, e.g. results/enforce_eager" in done.output


def test_documented_example_is_what_the_command_prints() -> None:
    """The page's first block is the command, its second what it prints."""
    page = (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")
    command, printed = re.findall(r"^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[:2]
    arguments = shlex.split(command.replace("\\\n", " "))
    assert arguments[0] == "campaign"
    assert CliRunner().invoke(main, arguments[1:]).output.strip() == printed.strip()


def test_readme_example() -> None:
    """What README shows of the output is a part of it."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## For your own server")[1].split("\n## ")[0]
    (command,) = re.findall(r"^    campaign (advise .*)", section, re.MULTILINE)
    (shown,) = re.findall(r"^```\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert shown in CliRunner().invoke(main, shlex.split(command)).output
