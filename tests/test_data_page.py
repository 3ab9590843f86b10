"""docs/data.md: names every field of the data that ships."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from analysis.formats.run_record import GpuIdentity, RunRecord, Timeline

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/data.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([a-z0-9_]+)`", PAGE))
SHIPPED = ROOT / "results/enforce_eager"


@pytest.mark.parametrize("model", [RunRecord, Timeline, GpuIdentity])
def test_every_field_of_run_json_is_described(model: type[RunRecord]) -> None:
    assert set(model.model_fields) <= NAMED


def test_every_key_of_the_other_json_files_is_described() -> None:
    spread = {f"{of}_{name}" for of in ("mean", "median", "std", "p99") for name in ("ttft_ms", "tpot_ms", "itl_ms")}
    for pattern in ("campaign.json", "sittings/*/provenance.json", "runs/*/bench.json"):
        for path in SHIPPED.glob(pattern):
            assert set(json.loads(path.read_text())) <= NAMED | spread, path


def test_what_the_page_says_of_models_and_gpus_is_so() -> None:
    assert "**Models mostly on different GPUs**" in PAGE
    runs = [json.loads(path.read_text()) for path in SHIPPED.glob("runs/*/run.json")]
    models: dict[str, set[str]] = {}
    for run in runs:
        if run["profile"] in ("sporadic", "sustained"):
            models.setdefault(run["gpu"]["uuid"], set()).add(run["model"])
    assert sorted(map(len, models.values())) == [1] * len(models), "a GPU ran both models: change docs/data.md"


def test_what_few_runs_decide_is_named() -> None:
    claims = tomllib.loads((ROOT / "analysis/claims.toml").read_text(encoding="utf-8"))["claim"]
    judged = {claim["id"] for claim in claims if claim.get("min_n") == 1 and "tolerance" in claim}
    words = {"overload": "queue overload", "graph_memory": "graph memory", "no_preemption": "preemptions"}
    words |= {"same_work": "tokens", "itl_equals": "tokens"}
    row = PAGE.partition("- **Few blocks**")[2].partition("\n- ")[0]
    for claim in judged:
        assert any(claim.startswith(name) and word in row for name, word in words.items()), claim


def test_every_file_that_ships_is_described() -> None:
    told = PAGE + (ROOT / "docs/result-files.md").read_text(encoding="utf-8")
    for path in SHIPPED.rglob("*"):
        name = re.sub(r"^\d{8}T\d{6}Z-(plain|sweep)\.json$", "<time>-<way>.json", path.name)
        assert path.is_dir() or name in told, path
