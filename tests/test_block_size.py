"""The tokens of a KV block: measured, and what the scheduling model makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.advise import KV, STEPS, answer
from analysis.db import connect, read_tables
from analysis.errors import LoadError
from analysis.formats.metrics import parse_metrics
from analysis.load import load
from analysis.scheduling import SchedulerConfig, predict
from report.render import render
from runner.standin.engine import Engine
from runner.standin.settings import parse_serve
from tests import make_store, recorded

ARMS = ("graphs", "eager")
BLOCKS = 9  # 8 of them usable: of 32 tokens for all eight requests at once, of 16 for four
LENGTHS, CONCURRENCY = ((16, 8),) * 24, 8
ROOT = Path(__file__).parent.parent


def loaded(folder: Path, **sizes: int | None) -> Path:
    """A database of one block of a campaign whose arms have these block sizes; None: /metrics does not tell."""
    root = make_store.write_header(folder / "store")
    for arm in ARMS:
        told = {} if sizes[arm] is None else {"block_size": sizes[arm]}
        make_store.synthetic_run(
            root, "7b", arm, "sustained", 1, ARMS, facts={"num_blocks": BLOCKS, "estimated_graph_gib": 0.0} | told
        )
    load(root, folder / "d.duckdb")
    return folder / "d.duckdb"


def query(database: Path, sql: str) -> list[tuple[Any, ...]]:
    with connect(database) as con:
        return con.execute(sql).fetchall()


def test_told_by_the_real_engine() -> None:
    assert parse_metrics(recorded.text(recorded.CPU, "metrics_after.txt")).block_size == 32
    assert parse_metrics(recorded.text(recorded.GRAPHS, "metrics.txt")).block_size == 16
    for text in ("None", "0", "-1", ""):
        assert parse_metrics(f'vllm:cache_config_info{{block_size="{text}"}} 1.0\n').block_size is None


@pytest.mark.parametrize(("told", "size", "shown"), [(32, 32, "32"), (16, 16, "16"), (None, 16, "16, assumed")])
def test_prediction_by_the_measured_size(tmp_path: Path, told: int | None, size: int, shown: str) -> None:
    database = loaded(tmp_path, graphs=told, eager=told)
    assert query(database, "SELECT DISTINCT kv_block_tokens FROM runs") == [(told,)]
    sql = f"SELECT block_tokens, steps, mean_running FROM model_steps WHERE kv_blocks = {BLOCKS} AND model = '7b'"
    right = predict(SchedulerConfig(BLOCKS, size), LENGTHS, CONCURRENCY)
    assert query(database, sql) == [(size, right.waiting_steps, right.mean_running)]
    wrong = predict(SchedulerConfig(BLOCKS, 48 - size), LENGTHS, CONCURRENCY)
    assert right.waiting_steps != wrong.waiting_steps  # the size decides
    with connect(database) as con:
        tables = {table.name: table for table in read_tables(con)}
    for name, column, cells in (
        ("07_kv_pool", "block_tokens", {shown}),
        ("03_steps_model", "steps_while_requests_wait_by_the_model", {right.waiting_steps}),
    ):
        at = tables[name].columns.index(column)
        assert {row[at] for row in tables[name].rows} == cells


def test_arms_of_unlike_sizes_are_predicted_each_by_its_own(tmp_path: Path) -> None:
    database = loaded(tmp_path, graphs=32, eager=16)
    right = [(n, predict(SchedulerConfig(BLOCKS, n), LENGTHS, CONCURRENCY).waiting_steps) for n in (16, 32)]
    sql = f"SELECT block_tokens, steps FROM model_steps WHERE kv_blocks = {BLOCKS} AND model = '7b' ORDER BY 1"
    assert query(database, sql) == right
    render(database, tmp_path / "out")
    chart = (tmp_path / "out/charts/steps.svg").read_text()
    assert "sustained, blocks of 32 tokens" in chart
    with pytest.raises(LoadError, match=r"in KV blocks of one size"):
        answer(database, {})


@pytest.mark.parametrize(("told", "size"), [(32, 32), (None, 16)])
def test_advice_by_the_measured_size(tmp_path: Path, told: int | None, size: int) -> None:
    (advice,) = answer(loaded(tmp_path, graphs=told, eager=told), {})
    assert advice.rows[KV]["eager"].value == BLOCKS * size
    assert advice.rows[STEPS]["eager"].value == predict(SchedulerConfig(BLOCKS, size), LENGTHS, CONCURRENCY).steps
    assert any("block_size = 16" in line for line in advice.assumed) == (told is None)


def test_advice_by_a_given_size() -> None:
    load = {"concurrency": 8, "requests": 24, "input_tokens": 16, "output_tokens": 8}
    pool = {"kv_tokens": "graphs=288,eager=288", "model_shape": "28,4,128,2", "graph_gib": 1e-9}
    (advice,) = answer(None, load | pool | {"block_size": 32})
    assert advice.rows[STEPS]["eager"].value == predict(SchedulerConfig(9, 32), LENGTHS, CONCURRENCY).steps
    assert not any("block_size" in line for line in advice.assumed)


def test_the_stand_in_honours_the_flag() -> None:
    model = str(ROOT / "models/32b")
    engine = Engine(parse_serve([model, "--block-size", "32", "--num-gpu-blocks-override", "40"]))
    metrics = parse_metrics(engine.metrics_text().decode())
    assert (metrics.block_size, metrics.num_gpu_blocks) == (32, 40)
    assert engine.settings.scheduler == SchedulerConfig(
        40,
        32,
        max_model_len=engine.settings.scheduler.max_model_len,
        capture_sizes=engine.settings.scheduler.capture_sizes,
    )
    halved = parse_serve([model]).natural_blocks // 2
    assert abs(parse_serve([model, "--block-size", "32"]).natural_blocks - halved) <= 1
    engine.steps.close()


def test_the_column_is_described() -> None:
    assert "`kv_block_tokens`" in (ROOT / "docs/result-files.md").read_text()
