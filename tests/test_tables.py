"""The report's tables: each .sql runs by itself on a loaded database and says what the data says."""

from __future__ import annotations

import csv
import io
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analysis.db import FINDINGS, PROVENANCE, TABLES, Table, connect, read_head, read_tables
from analysis.errors import LoadError
from analysis.load import load
from report.cells import heading, text, to_csv
from tests import make_store


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    load(make_store.recorded_store(folder / "store"), folder / "r.duckdb")
    return folder / "r.duckdb"


def tables(database: Path) -> dict[str, Table]:
    with connect(database) as con:
        return {table.name[3:]: table for table in read_tables(con)}


def records(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, map(text, row), strict=True)) for row in table.rows]


def find(table: Table, **keys: str) -> dict[str, str]:
    (row,) = (r for r in records(table) if keys.items() <= r.items())
    return row


def test_each_file_is_one_statement_of_the_stock_shell(recorded: Path) -> None:
    for path in sorted(TABLES.glob("*.sql")):
        with duckdb.connect(str(recorded), read_only=True) as con:  # no setting, no parameter, no Python
            assert len(con.extract_statements(path.read_text())) == 1, path.name
            con.execute(path.read_text())
        assert path.read_text().startswith("-- title: "), path.name


def test_throughput(recorded: Path) -> None:
    row = find(tables(recorded)["throughput"], arm="graphs_kv_matched")
    assert (row["output_tok_s"], row["ratio_to_eager"], row["verdict"]) == (
        "661.2 (n = 1)",
        "1.184 (n = 1)",
        "not resolved",
    )
    assert find(tables(recorded)["throughput"], arm="eager")["ratio_to_eager"] == "reference"


def test_mechanism(recorded: Path) -> None:
    row = find(tables(recorded)["mechanism"])
    assert (row["total_effect"], row["at_equal_kv"], row["kv_tax"]) == (
        "1.128 (n = 1)",
        "1.184 (n = 1)",
        "0.953 (n = 1)",
    )
    assert row["product"] == "1.128"


def test_kv_pool(recorded: Path) -> None:
    pool = tables(recorded)["kv_pool"]
    matched, graphs, eager = (find(pool, arm=arm) for arm in ("graphs_kv_matched", "graphs", "eager"))
    assert (matched["blocks_natural"], matched["blocks_in_effect"], matched["kv_tokens"]) == ("1869", "2104", "33664")
    assert (graphs["graphs_estimated_gib"], graphs["graphs_actual_gib"], graphs["max_concurrency"]) == (
        "0.90",
        "1.02",
        "7.30",
    )
    assert (eager["graphs_estimated_gib"], eager["blocks_in_effect"]) == ("no graphs", "2104")


def test_queue_overload(recorded: Path) -> None:
    row = find(tables(recorded)["queue_overload"])
    assert (row["concurrency"], row["overload_graphs"], row["overload_eager"]) == ("64", "8.767", "7.786")


def test_padding(recorded: Path) -> None:
    row = find(tables(recorded)["padding"], arm="graphs", span="while requests wait", runtime_mode="FULL")
    assert (row["steps"], row["padding_pct"]) == ("2342", "16.7")


def test_steps_say_of_which_span_they_are(recorded: Path, two_blocks: dict[str, Table]) -> None:
    row = find(tables(recorded)["steps"], arm="graphs")
    assert (row["steps_while_requests_wait"], row["steps_in_the_window"]) == ("2455 (n = 1)", "2456 (n = 1)")
    named = {table.name: [c for c in table.columns if "steps" in c] for table in tables(recorded).values()}
    plain = {name for name, columns in named.items() if "steps" in columns}
    assert plain == {"11_padding"}  # which has the column span
    assert {r["span"] for r in records(two_blocks["padding"])} == {"in the window", "while requests wait"}
    metrics = {r["metric"] for r in records(two_blocks["effects"])}
    assert {"steps_while_requests_wait", "mean_running_while_requests_wait"} < metrics
    assert not {"steps", "mean_running"} & metrics


def test_cold_and_warm_starts_stay_apart(recorded: Path) -> None:
    found = tables(recorded)
    assert {r["arm"] for r in records(found["cold_start"])} == {"eager", "graphs_kv_matched"}
    assert {r["arm"] for r in records(found["cold_start_cold_cache"])} == {"graphs", "compile_only"}


def test_answer(recorded: Path) -> None:
    row = find(tables(recorded)["answer"])
    shown = ("overload", "throughput_ratio", "throughput_ratio_at_equal_kv", "tokens_per_joule_ratio")
    assert [row[c] for c in shown] == ["7.786", "1.128 (n = 1)", "1.184 (n = 1)", "not measured"]


@pytest.fixture(scope="module")
def two_blocks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    """Eager takes five times as long, graphs and trimmed graphs the same; eager runs have warnings."""
    folder, arms = tmp_path_factory.mktemp("two"), ("graphs", "eager", "graphs_kv_matched", "graphs_trimmed")
    root = make_store.write_header(folder / "store")
    with pytest.MonkeyPatch.context() as patch:
        for arm, time in zip(arms, (1.0, 5.0, 1.0, 0.9), strict=True):
            patch.setitem(make_store.SPEED, arm, time)
        patch.setitem(make_store.ARM_FLAGS, "graphs_trimmed", ())
        for repetition in (1, 2):
            for arm in arms:
                make_store.synthetic_run(root, "7b", arm, "sustained", repetition, arms, telemetry=True)
    load(root, folder / "d.duckdb")
    with connect(folder / "d.duckdb", read_only=False) as con:
        con.execute("DELETE FROM reasons")
        con.execute("""INSERT INTO reasons SELECT '7b.eager.sustained.' || run, code, 'warning', evidence, ''
            FROM (VALUES
            ('r1.p1a1', 'step_time_drift', 'a step took 9 ms, 9 to 10 ms in its tenths (+11%)'),
            ('r2.p1a1', 'step_time_drift', 'a step took 8 ms, 8 to 20 ms in its tenths (+150%)'),
            ('r2.p1a1', 'telemetry_gap', '2.0 s without a sample')) AS t(run, code, evidence)""")
    return tables(folder / "d.duckdb")


def test_two_blocks_call_nothing_higher(two_blocks: dict[str, Table]) -> None:
    row = find(two_blocks["effects"], metric="output_tok_s", arm_a="graphs", arm_b="eager")
    assert float(row["ratio"].partition("[")[2].partition(",")[0]) > 1  # the interval would
    assert row["verdict"] == "not resolved"
    assert {r["verdict"] for r in records(two_blocks["throughput"])} == {"reference", "not resolved"}


def test_warnings_stand_beside_the_figures(two_blocks: dict[str, Table]) -> None:
    drift = "step_time_drift (2 of 2, up to 150%)"
    assert find(two_blocks["throughput"], arm="eager")["warnings"] == f"{drift}, telemetry_gap (1 of 2)"
    run = find(two_blocks["runs"], folder="7b.eager.sustained.r1.p1a1")
    assert run["reasons"] == "step_time_drift (+11%)"
    assert find(two_blocks["throughput"], arm="graphs")["warnings"] == ""
    cost = find(two_blocks["in_words"], question="What does --enforce-eager cost?", cell="7b sustained")["answer"]
    assert cost.startswith("Output tokens/s against graphs and torch.compile: -")
    assert cost.endswith(f" Warnings: eager {drift}, telemetry_gap (1 of 2).")


def test_trimming_is_advised_on_three_blocks_only(two_blocks: dict[str, Table]) -> None:
    told = [r["answer"] for r in records(two_blocks["in_words"]) if r["question"] == "What to set?"]
    assert any(answer.startswith("No advice yet, on fewer than three blocks, on trimming") for answer in told)
    assert not any("capture no more sizes" in answer for answer in told)


def test_starts_that_should_be_alike_stand_beside_break_even(two_blocks: dict[str, Table]) -> None:
    with_pool = {
        arm: find(two_blocks["break_even"], arm=arm)["starts_alike"] for arm in ("graphs", "graphs_kv_matched")
    }
    assert with_pool["graphs"] == with_pool["graphs_kv_matched"]
    assert with_pool["graphs"].endswith(" s (n = 4)")
    answer = find(two_blocks["in_words"], question="What does it buy?", cell="7b")["answer"]
    assert f"graphs {with_pool['graphs']}" in answer


def test_one_block_says_what_it_does_not_cancel(recorded: Path, two_blocks: dict[str, Table]) -> None:
    one, two = tables(recorded)["deviations"], two_blocks["deviations"]
    assert "are of one set of prompts" in find(one, subject="prompts")["consequence"]
    assert "does not average out" in find(one, subject="order")["consequence"]
    assert "not of one set of prompts" in find(two, subject="prompts")["consequence"]


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An arm that captures in no whole second, one that compiles only, one without either, and a first start."""
    folder, arms = tmp_path_factory.mktemp("phases"), ("graphs", "eager", "compile_only", "graphs_trimmed")
    root = make_store.write_header(folder / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(make_store.ARM_FLAGS, "graphs_trimmed", ())
        patch.setitem(make_store.SPEED, "graphs_trimmed", 1.0)
        for arm in arms:
            facts = {"graphs": {"capture_s": 0}, "compile_only": {"compile_cache": "warm", "engine_init_s": 9.0}}
            make_store.synthetic_run(root, "7b", arm, "sustained", 1, arms, facts=facts.get(arm))
        make_store.synthetic_prime(root, "7b", "eager", {})
    load(root, folder / "d.duckdb")
    return folder / "d.duckdb"


def test_a_phase_that_an_arm_has_not_is_none_and_a_measured_zero_is_0(phases: Path) -> None:
    found = tables(phases)
    both = ("of_which_compile_s", "of_which_capture_s")
    shown = {arm: [find(found["start_parts"], arm=arm)[c] for c in both] for arm in ("graphs", "compile_only", "eager")}
    assert shown == {
        "graphs": ["5.20 (n = 1)", "0.0 (n = 1)"],
        "compile_only": ["5.00 (n = 1)", "none"],
        "eager": ["none", "none"],
    }
    parts = ("capture_s", "capture_pct", "compile_s", "compile_pct", "accounted_pct")
    assert [find(found["engine_init"], arm="compile_only")[c] for c in parts] == [
        "none",
        "none",
        "5.00 (n = 1)",
        "500.0 (n = 1)",
        "500.0 (n = 1)",
    ]
    shares = ["0.0 (n = 1)", "0.0 (n = 1)", "5.20 (n = 1)", "130.0 (n = 1)", "130.0 (n = 1)"]
    assert [find(found["engine_init"], arm="graphs")[c] for c in parts] == shares
    first = find(found["cold_start_cold_cache"], arm="eager")
    assert (first["torch_compile_s"], first["capture_s"]) == ("none", "none")
    assert find(found["cost_campaign"], kind="prime")["of_which_windows_hours"] == "none"
    assert float(find(found["cost_campaign"], kind="run")["of_which_windows_hours"]) > 0


def test_what_no_log_line_told_is_not_measured(phases: Path, tmp_path: Path) -> None:
    shutil.copy(phases, tmp_path / "d.duckdb")
    with connect(tmp_path / "d.duckdb", read_only=False) as con:
        con.execute("UPDATE runs SET capture_s = NULL, capture_gib = NULL, graph_pool_actual_gib = NULL")
        con.execute("UPDATE runs SET window_end_ns = NULL")
        con.execute("DELETE FROM metrics")
    found = tables(tmp_path / "d.duckdb")
    row = find(found["trimmed"], against="graphs")
    columns = ("graphs_trimmed_gib", "graphs_other_gib", "capture_trimmed_s", "capture_other_s")
    assert {row[c] for c in columns} == {"not measured"}
    assert find(found["trimmed"], against="eager")["capture_other_s"] == "no graphs"
    assert {r["queue_ms"] for r in records(found["queueing"])} == {"not measured"}
    assert find(found["cost_campaign"], kind="run")["of_which_windows_hours"] == "not measured"


def test_one_run_has_no_standard_deviation(recorded: Path, two_blocks: dict[str, Table]) -> None:
    assert {r["standard_deviation_pct"] for r in records(tables(recorded)["distributions"])} == {"one run"}
    assert all(float(r["standard_deviation_pct"]) > 0 for r in records(two_blocks["distributions"]))


def test_energy_ratios_name_the_random_weights(two_blocks: dict[str, Table]) -> None:
    for name in ("answer", "energy", "effects"):
        assert "With random weights energy is only a bound" in two_blocks[name].note


def test_no_text_shows_backticks() -> None:
    """Headings and notes are shown as they are, in Markdown with every mark escaped."""
    for folder in (TABLES, FINDINGS, PROVENANCE):
        for path in folder.glob("*.sql"):
            assert "`" not in "".join(read_head(path)[0].values()), path.name


def test_energy_and_clocks(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    for arm in ("graphs", "eager"):
        make_store.synthetic_run(root, "7b", arm, "sustained", 1, ("graphs", "eager"), telemetry=True)
    load(root, tmp_path / "d.duckdb")
    row = find(tables(tmp_path / "d.duckdb")["energy"], arm="graphs")
    assert (row["mean_power_w"], row["sm_clock_mhz"]) == ("300.0 (n = 1)", "1980 (n = 1)")
    assert (row["power_capped_pct"], row["slowed_pct"]) == ("24.6 (n = 1)", "0.0 (n = 1)")


def test_sittings_tell_first_what_differs(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store", sittings=("s1", "s2"))
    provenance = {
        "gpu": {"uuid": "GPU-2", "ecc": None},
        "machine": {"host": "node-1"},
        "engine": {"packages": {"x": "1"}},
    }
    (root / "sittings" / "s2" / "provenance.json").write_text(json.dumps(provenance))
    load(root, tmp_path / "d.duckdb")
    assert tables(tmp_path / "d.duckdb")["sittings"].rows == (
        ("gpu.ecc", "not reported", "s2"),
        ("gpu.uuid", "GPU-2", "s2"),
        ("machine.host", "node-1", "all 2"),
    )


def test_energy_without_telemetry_is_not_measured(recorded: Path) -> None:
    rows = records(tables(recorded)["energy"])
    assert len(rows) == 4
    assert {r[c] for r in rows for c in ("window_j", "output_tokens_per_j", "mean_power_w")} == {"not measured"}


def test_preemptions(recorded: Path) -> None:
    row = find(tables(recorded)["preemptions"], arm="graphs")
    assert (row["by_counter"], row["by_step_trace"], row["runs_that_disagree"]) == ("55", "55", "0")


def test_arms_on_different_cards_are_never_pooled(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    h100 = make_store.H200.model_copy(update={"name": "NVIDIA H100", "uuid": "GPU-h100"})
    for repetition, gpu in ((1, make_store.H200), (2, h100)):
        for arm in ("graphs", "eager"):
            make_store.synthetic_run(root, "7b", arm, "sustained", repetition, ("graphs", "eager"), gpu=gpu)
    load(root, tmp_path / "d.duckdb")
    rows = records(tables(tmp_path / "d.duckdb")["throughput"])
    assert {r["setup"] for r in rows} == {"NVIDIA H100, random weights", "NVIDIA H200, random weights"}
    assert all("(n = 1)" in r["output_tok_s"] for r in rows)


@pytest.mark.parametrize(
    ("uuid", "machine", "beside"),
    [
        ("GPU-2", "boot-1", True),
        ("GPU-2", "boot-2", False),  # the clocks of two machines do not compare
        (make_store.H200.uuid, "boot-1", False),  # not a neighbour but the same place
    ],
)
def test_runs_beside_each_other_are_named(tmp_path: Path, uuid: str, machine: str, beside: bool) -> None:
    root = make_store.write_header(tmp_path / "store")
    other = make_store.H200.model_copy(update={"uuid": uuid, "index": 1})
    # alive 100 s to 211.5 s, and 50 s to 170 s
    for model, gpu, where, begin, window in (
        ("7b", make_store.H200, "boot-1", 100.0, (150.0, 209.5)),
        ("32b", other, machine, 50.0, (100.0, 168.0)),
    ):
        times = make_store.timeline(begin, 20, window)
        record = make_store.make_record(
            "eager", "sustained", 1, times, model=model, arms=("eager",), gpu=gpu, machine_id=where
        )
        make_store.write_run(root, record)
    cut_off = make_store.Timeline(run_begin_ns=160 * 10**9, exec_ns=161 * 10**9, exited_ns=180 * 10**9)
    third = other if uuid == make_store.H200.uuid else other.model_copy(update={"uuid": "GPU-3"})
    prime = make_store.make_record("eager", None, None, cut_off, model="32b", gpu=third, machine_id=machine)
    make_store.write_run(root, prime.model_copy(update={"status": "failed"}))
    load(root, tmp_path / "d.duckdb")
    found = tables(tmp_path / "d.duckdb")
    run = find(found["runs"], folder="7b.eager.sustained.r1.p1a1")
    if not beside:
        assert (run["window_shared_s"], run["beside"]) == ("0.0", "")
        return
    # beside the run to its end at 170 s, beside the prime from 160 s to 180 s: 30 s of the window, not 40 s
    assert run["window_shared_s"] == "30.0"
    assert run["beside"] == "32b.eager.sustained.r1.p1a1 (70.0 s), 32b.eager.prime.p1a1 (20.0 s)"
    assert find(found["runs"], folder="32b.eager.prime.p1a1")["window_shared_s"] == ""


@pytest.mark.parametrize("same", [False, True])
def test_models_on_gpus_of_their_own_are_a_deviation(tmp_path: Path, same: bool) -> None:
    root = make_store.write_header(tmp_path / "store")
    other = make_store.H200 if same else make_store.H200.model_copy(update={"uuid": "GPU-2", "index": 1})
    for model, gpu in (("7b", make_store.H200), ("32b", other)):
        make_store.synthetic_run(root, model, "eager", "sustained", 1, ("eager",), gpu=gpu)
    make_store.synthetic_run(root, "7b", "eager", "sporadic", 1, ("eager",))  # one model alone: nothing to confound
    load(root, tmp_path / "d.duckdb")
    rows = records(tables(tmp_path / "d.duckdb")["deviations"])
    told = [r["here"] for r in rows if r["subject"] == "model and GPU"]
    assert told == ([] if same else ["each GPU ran one model only (sustained)"])


@pytest.mark.parametrize(("machine", "counted"), [("boot-1", ["2 of 3"]), ("boot-2", [])])
def test_counted_runs_with_a_neighbour_are_a_deviation(tmp_path: Path, machine: str, counted: list[str]) -> None:
    root = make_store.write_header(tmp_path / "store")
    other = make_store.H200.model_copy(update={"uuid": "GPU-2", "index": 1})
    make_store.synthetic_run(root, "7b", "eager", "sustained", 1, ("eager",), begin=1000.0)
    make_store.synthetic_run(root, "7b", "eager", "sustained", 2, ("eager",))  # later, alone
    make_store.synthetic_run(
        root, "32b", "eager", "sustained", 1, ("eager",), gpu=other, machine_id=machine, begin=1000.0
    )
    load(root, tmp_path / "d.duckdb")
    found = tables(tmp_path / "d.duckdb")
    rows = [r for r in records(found["deviations"]) if r["subject"] == "neighbours"]
    assert [r["here"].split(" counted")[0] for r in rows] == counted
    assert find(found["runs"], folder="7b.eager.sustained.r2.p1a1")["window_shared_s"] == "0.0"


def test_broken_sql_names_its_file(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "99_broken.sql").write_text("-- title: Broken\nSELECT nothing FROM nowhere;\n")
    with connect(recorded) as con, pytest.raises(LoadError, match=r"99_broken\.sql"):
        read_tables(con, tmp_path)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "not measured"),
        (["1", None], "1, not measured"),
        (["1"] * 99, ", ".join("1" * 99)),
        (["1"] * 100, ", ".join("1" * 99) + ", … (100 in the CSV)"),
        ({"mean": Decimal("1.0"), "lo": None, "hi": None, "n": 1}, "1.0 (n = 1)"),
        ({"mean": Decimal("1.0"), "lo": Decimal("0.5"), "hi": Decimal("1.5"), "n": 3}, "1.0 [0.5, 1.5] (n = 3)"),
        ({"mean": None, "lo": None, "hi": None, "n": None}, "not measured"),
        ({"mean": None, "lo": None, "hi": None, "n": 0}, "reference"),
        ({"mean": None, "lo": None, "hi": None, "n": 2}, "none"),
        ([1, None], "1, not measured"),
        (0, "0"),
    ],
)
def test_cells(value: Any, shown: str) -> None:
    assert text(value) == shown


def test_headings() -> None:
    assert [heading(c) for c in ("to_health_s", "output_tok_s", "kv_blocks", "window_j")] == [
        "to health, s",
        "output, tokens/s",
        "KV blocks",
        "window, J",
    ]


def test_csv_splits_estimates_and_leaves_null_empty(recorded: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(tables(recorded)["throughput"]))))
    assert rows[0]["output_tok_s.mean"] == "530.6"
    assert (rows[0]["output_tok_s.lo"], rows[0]["output_tok_s.n"]) == ("", "1")
