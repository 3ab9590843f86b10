"""The Slurm array hands every task its shard, and Slurm's warning to the campaign; options in deploy/ exist."""

from __future__ import annotations

import os
import re
import subprocess
import time
import tomllib
from pathlib import Path

import click
import pytest

from runner.cli import main

ROOT = Path(__file__).parent.parent
FAKE = """#!/bin/sh
echo "$@" > args
trap 'echo stopped >> args; exit 143' TERM
[ -e stay ] || exit 4
while :; do sleep 0.1; done
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/campaign").write_text(FAKE)
    (tmp_path / ".venv/bin/campaign").chmod(0o755)
    return tmp_path


def start(checkout: Path) -> subprocess.Popen[bytes]:
    task = {"SLURM_SUBMIT_DIR": str(checkout), "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4"}
    script = [ROOT / "deploy/slurm-array.sh", "--suite", "mechanism"]
    return subprocess.Popen(script, env=os.environ | task)


def test_a_task_runs_its_shard_and_ends_with_the_campaigns_status(checkout: Path) -> None:
    assert start(checkout).wait(20) == 4
    words = (checkout / "args").read_text().split()
    assert words[:5] == ["run", "--shard", "3/4", "--results", "results/shard-3"]
    assert words[-2:] == ["--suite", "mechanism"]


def test_slurms_warning_stops_the_campaign_in_order(checkout: Path) -> None:
    (checkout / "stay").touch()
    task = start(checkout)
    while not (checkout / "args").exists():
        time.sleep(0.05)
    time.sleep(0.2)
    task.terminate()
    assert task.wait(20) == 143
    assert (checkout / "args").read_text().endswith("stopped\n")


@pytest.mark.parametrize("name", ["slurm-array.sh", "kubernetes-job.yaml"])
def test_options_exist(name: str) -> None:
    text = (ROOT / "deploy" / name).read_text()
    (call,) = re.findall(r"campaign run (--shard.*?|--launcher.*?)(?:&|\n {10}[a-z])", text, re.DOTALL)
    known = {o for p in main.commands["run"].params if isinstance(p, click.Option) for o in p.opts}
    assert set(re.findall(r"(?<=\s)--[a-z-]+", " " + call)) <= known


def test_the_entrypoint_knows_every_command() -> None:
    (words,) = re.findall(r"-\* \| (.*)\) set -- campaign", (ROOT / "container/entrypoint.sh").read_text())
    assert set(words.split(" | ")) == set(main.commands)


def test_images_carry_the_projects_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.findall(r'image.version="(.*)"', (ROOT / "Dockerfile").read_text()) == [version, version]
    tags = re.findall(r"eager-cost/\w+:([\w.]+)", (ROOT / "compose.yaml").read_text())
    assert set(tags) == {version}


def test_every_index_of_the_job_has_one_shard() -> None:
    text = (ROOT / "deploy/kubernetes-job.yaml").read_text()
    completions = re.findall(r"completions: (\d+)", text)
    assert completions == re.findall(r"INDEX \+ 1\)\)/(\d+)", text)
