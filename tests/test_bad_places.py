"""Files and folders that are given by mistake: refused with the next step, and left as they are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

from analysis.errors import LoadError
from analysis.load import load
from runner.cli import main
from runner.config import Config, load_config
from runner.errors import StoreError
from runner.store import Store
from tests import make_store
from tests.make_config import toml

ROOT = Path(__file__).parent.parent
DEMO = ["--config", str(ROOT / "examples/demo.toml")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store.write_header(tmp_path_factory.mktemp("store"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "campaign.toml"
    path.write_text(toml())
    return load_config(path)


def campaign(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def refused(done: Result, named: str | Path) -> None:
    assert (done.exit_code, isinstance(done.exception, SystemExit)) == (2, True), done.output
    assert str(named) in done.stderr
    assert "next: " in done.stderr


@pytest.mark.parametrize("name", ["x.toml", "x.toml.loading"])
def test_load_overwrites_nothing_but_a_database(results: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path / name
    other.write_text("# a campaign.toml, or anything else that is dear\n")
    refused(campaign("load", results, "--database", tmp_path / "x.toml"), other)
    assert other.read_text().startswith("# a campaign.toml")


def test_load_writes_nothing_into_the_results(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "q")
    before = (tmp_path / "q/campaign.json").read_bytes()
    for name in ("campaign.json", "new/results.duckdb"):
        refused(campaign("load", tmp_path / "q", "--database", tmp_path / "q" / name), tmp_path / "q")
    refused(campaign("report", tmp_path / "q", "--out", tmp_path / "q/report"), tmp_path / "q")
    assert (tmp_path / "q/campaign.json").read_bytes() == before
    assert {path.name for path in (tmp_path / "q").iterdir()} == {path.name for path in results.iterdir()}


def test_a_database_of_another_schema_is_replaced(results: Path, tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "old.duckdb")) as con:
        con.execute("CREATE TABLE attempts (x INTEGER); CREATE TABLE old (x INTEGER)")
    load(results, tmp_path / "old.duckdb")
    with duckdb.connect(str(tmp_path / "old.duckdb")) as con, pytest.raises(duckdb.CatalogException):
        con.execute("FROM old")


def test_a_database_of_another_program_and_an_open_one_are_kept(results: Path, tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "mine.duckdb")) as con:
        con.execute("CREATE TABLE mine AS SELECT 1 AS x")
    refused(campaign("load", results, "--database", tmp_path / "mine.duckdb"), tmp_path / "mine.duckdb")
    with duckdb.connect(str(tmp_path / "mine.duckdb"), read_only=True) as con:
        assert con.execute("FROM mine").fetchall() == [(1,)]
    database = load(results, tmp_path / "d.duckdb").database
    hold = f"import duckdb, time; con = duckdb.connect({str(database)!r}); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        refused(campaign("load", results, "--database", database), database)
        said = campaign("check", "--database", database)
        holder.kill()
    assert (said.exit_code, "next: end the program that has it open" in said.output) == (2, True), said.output


def test_a_report_where_a_file_is_or_nothing_may_be_written_is_refused(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file")
    database = load(results, tmp_path / "d.duckdb").database
    for bad in (tmp_path / "file", tmp_path / "file/x", Path("/proc/report")):
        refused(campaign("report", results, "--out", bad), bad)
        refused(campaign("report", "--database", database, "--against", results, "--out", bad), bad)
        refused(campaign("run", *DEMO, "--results", tmp_path / "new", "--report", bad), bad)
    assert not (tmp_path / "new").exists(), "told before the campaign starts"
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(LoadError, match="no right to write"):
        load(results, tmp_path / "e.duckdb")


def test_status_of_another_campaigns_folder_says_so_first_and_fails(tmp_path: Path, config: Config) -> None:
    with Store.open(tmp_path / "r", config):
        pass
    own = campaign("status", "--config", config.path, "--results", tmp_path / "r")
    assert (own.exit_code, own.output.splitlines()[0]) == (0, f"campaign {config.campaign.name} in {tmp_path / 'r'}")
    other = campaign("status", *DEMO, "--results", tmp_path / "r")
    assert (other.exit_code, other.output.startswith("warning: begun with another")) == (2, True)
    assert "campaign.name" in other.output.splitlines()[0]
    config.path.write_text(config.text.replace("prompts = 40", "prompts = 41"))
    edited = campaign("status", "--config", config.path, "--results", tmp_path / "r")
    assert (edited.exit_code, edited.output.startswith("warning: ")) == (0, True), edited.output


def test_a_folder_with_other_files_is_no_place_for_results(tmp_path: Path, config: Config) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "letter.txt").write_text("dear")
    for look in (Store.open, Store.look):
        with pytest.raises(StoreError, match=r"not empty: it holds letter\.txt"):
            look(folder, config)
    assert [path.name for path in folder.iterdir()] == ["letter.txt"], "nothing is mixed in"


def test_what_a_dead_start_left_is_gone_on_with(tmp_path: Path, config: Config) -> None:
    with Store.open(tmp_path / "r", config):
        pass
    (tmp_path / "r/campaign.json").rename(tmp_path / "r/campaign.json.tmp")
    assert Store.look(tmp_path / "r", config).endswith("new")
    with Store.open(tmp_path / "r", config) as store:
        assert json.loads((store.root / "campaign.json").read_text())["campaign"] == config.campaign.name
