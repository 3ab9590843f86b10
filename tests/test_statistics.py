"""Intervals, tests and verdicts: against scipy, by simulated campaigns, and by swapping labels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import stats

from analysis.claims import __file__ as claims_file
from analysis.db import VIEWS_SQL, connect
from analysis.load import load
from tests import make_store

CAMPAIGNS, BLOCKS = 2000, 5
PUBLISHED_SQL = Path(claims_file).with_name("published.sql")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without runs: schema, macros and views."""
    folder = tmp_path_factory.mktemp("empty")
    load(make_store.write_header(folder / "store"), folder / "d.duckdb")
    return folder / "d.duckdb"


@pytest.fixture
def con(empty: Path, tmp_path: Path) -> duckdb.DuckDBPyConnection:
    return connect(Path(shutil.copy(empty, tmp_path)), read_only=False)


def again(con: duckdb.DuckDBPyConnection, path: Path, table: str) -> None:
    """Fill a derived table anew from what it is derived from, by the statement that ships."""
    (statement,) = (s.query for s in con.extract_statements(path.read_text()) if f"CREATE TABLE {table} AS" in s.query)
    con.execute(f"DROP TABLE {table}")
    con.execute(statement)


def insert(con: duckdb.DuckDBPyConnection, table: str, columns: dict[str, Any]) -> None:
    marks = ", ".join("unnest(?)" for _ in columns)
    con.execute(
        f"INSERT INTO {table} BY NAME SELECT * FROM (SELECT {marks}) AS v({', '.join(columns)})",
        [np.asarray(values).tolist() for values in columns.values()],
    )


def campaigns(con: duckdb.DuckDBPyConnection, values: dict[str, np.ndarray]) -> None:
    """One figure of each arm, campaigns x blocks; a campaign stands in the column `model`."""
    count, blocks = next(iter(values.values())).shape
    campaign, block = (grid.ravel() for grid in np.meshgrid(np.arange(count), np.arange(blocks), indexing="ij"))
    for arm, figures in values.items():
        insert(
            con,
            "run_values",
            {
                "setup": ["s"] * campaign.size,
                "model": [str(c) for c in campaign],
                "profile": ["p"] * campaign.size,
                "arm": [arm] * campaign.size,
                "pair_id": [str(b) for b in block],
                "repetition": block,
                "pass_number": [1] * campaign.size,
                "metric": ["output_tok_s"] * campaign.size,
                "value": figures.ravel(),
            },
        )
    again(con, VIEWS_SQL, "effects")


def simulated(rng: np.random.Generator, ratio: float, blocks: int = BLOCKS) -> dict[str, np.ndarray]:
    """Blocks drift by 3%, runs scatter by 1%."""
    block = 600 * np.exp(rng.normal(0, 0.03, (CAMPAIGNS, blocks)))
    noise = rng.normal(0, 0.01, (2, CAMPAIGNS, blocks))
    return {"graphs": block * ratio * np.exp(noise[0]), "eager": block * np.exp(noise[1])}


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_interval_is_scipys(con: duckdb.DuckDBPyConnection, n: int) -> None:
    values = np.random.default_rng(n).normal(600, 5, n).tolist()
    ((found,),) = con.execute("SELECT mean95(x) FROM unnest(?) AS v(x)", [values]).fetchall()
    low, high = stats.t.interval(0.95, n - 1, np.mean(values), stats.sem(values))
    assert (found["mean"], found["lo"], found["hi"]) == pytest.approx((np.mean(values), low, high), rel=1e-12)
    assert found["n"] == n


def test_no_interval_for_one(con: duckdb.DuckDBPyConnection) -> None:
    ((found,),) = con.execute("SELECT mean95(x) FROM (VALUES (3.0)) AS v(x)").fetchall()
    assert found == {"mean": 3.0, "lo": None, "hi": None, "n": 1}


@pytest.mark.parametrize("n", [1, 3, 5, 8])
def test_exact_p_is_scipys(con: duckdb.DuckDBPyConnection, n: int) -> None:
    values = np.random.default_rng(n).normal(0.3, 1, n).tolist()
    ((found,),) = con.execute("SELECT sign_flip_p(?::DOUBLE[])", [values]).fetchall()
    if n == 1:
        assert found == 1
        return
    reference = stats.permutation_test((values,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert found == pytest.approx(reference.pvalue)


def test_slope_is_scipys(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    for repetition in range(1, 5):
        for arm in ("graphs", "eager"):
            make_store.synthetic_run(root, "7b", arm, "sporadic", repetition, ("graphs", "eager"))
    load(root, tmp_path / "d.duckdb")
    with connect(tmp_path / "d.duckdb") as full:
        rows = full.execute("SELECT points, slope_pct FROM drifts WHERE metric = 'output_tok_s'").fetchall()
    assert len(rows) == 2
    for points, slope in rows:
        fit = stats.linregress(range(1, 5), points)
        half = stats.t.ppf(0.975, 2) * fit.stderr
        expected = (fit.slope, fit.slope - half, fit.slope + half)
        scale = 100 / np.mean(points)
        assert (slope["mean"], slope["lo"], slope["hi"]) == pytest.approx([x * scale for x in expected], rel=1e-9)


@pytest.mark.parametrize("ratio", [1.0, 0.95])
def test_95_of_100_intervals_hold_the_true_ratio(con: duckdb.DuckDBPyConnection, ratio: float) -> None:
    campaigns(con, simulated(np.random.default_rng(1), ratio))
    ((count, coverage, lower, p_least),) = con.execute(
        "SELECT count(*), avg((ratio.lo <= $1 AND ratio.hi >= $1)::INTEGER), avg((verdict = 'lower')::INTEGER), min(p)"
        " FROM effects WHERE arm_a = 'graphs'",
        [ratio],
    ).fetchall()
    assert count == CAMPAIGNS
    assert 0.93 <= coverage <= 0.97
    assert p_least == 0.0625  # five blocks cannot give less
    assert lower == pytest.approx(0.025, abs=0.01) if ratio == 1 else lower > 0.95


def test_intervals_of_break_even_hold_the_true_number(con: duckdb.DuckDBPyConnection) -> None:
    """Extra start 15 s, 50 ms saved a request: 300 requests. And where nothing is saved, 'never' is not excluded."""
    rng = np.random.default_rng(2)
    for profile, saving in (("saves", 0.05), ("never", 0.0)):
        size = CAMPAIGNS * BLOCKS
        insert(
            con,
            "repayments",
            {
                "setup": ["s"] * size,
                "model": [str(c) for c in np.repeat(np.arange(CAMPAIGNS), BLOCKS)],
                "profile": [profile] * size,
                "arm": ["graphs"] * size,
                "pair_id": [str(b) for b in np.tile(np.arange(BLOCKS), CAMPAIGNS)],
                "extra_s": rng.normal(15, 1, size),
                "saving_s": rng.normal(saving, 0.02, size),
            },
        )
    again(con, PUBLISHED_SQL, "break_evens")
    found = dict(
        con.execute(
            "SELECT profile, avg((CASE profile WHEN 'saves' THEN 300 BETWEEN fewest AND most"
            " ELSE most = 'inf'::DOUBLE END)::INTEGER) FROM break_evens GROUP BY profile"
        ).fetchall()
    )
    assert 0.93 <= found["saves"] <= 0.97
    assert found["never"] >= 0.95


def test_swapped_labels_flip_every_sign(con: duckdb.DuckDBPyConnection) -> None:
    values = simulated(np.random.default_rng(3), 0.98)
    seen = []
    for arms in (values, {"graphs": values["eager"], "eager": values["graphs"]}):
        con.execute("DELETE FROM run_values")
        campaigns(con, arms)
        seen.append(
            con.execute(
                "SELECT ratio.mean, ratio.lo, ratio.hi, difference.mean, verdict, p FROM effects WHERE arm_a = 'graphs'"
                " ORDER BY model"
            ).fetchall()
        )
    opposite = {"higher": "lower", "lower": "higher", "not resolved": "not resolved"}
    for one, other in zip(*seen, strict=True):
        assert other[:3] == pytest.approx((1 / one[0], 1 / one[2], 1 / one[1]), rel=1e-14)
        assert other[3:] == (-one[3], opposite[one[4]], one[5])


def test_a_block_less_is_a_wider_interval(con: duckdb.DuckDBPyConnection) -> None:
    widths = []
    for blocks in (5, 4):
        con.execute("DELETE FROM run_values")
        campaigns(con, {arm: v[:, :blocks] for arm, v in simulated(np.random.default_rng(4), 0.98).items()})
        rows = con.execute("SELECT n, median(ratio.hi / ratio.lo) FROM effects WHERE arm_a = 'graphs' GROUP BY n")
        ((n, width),) = rows.fetchall()
        assert n == blocks
        widths.append(width)
    assert widths[1] > widths[0]
