"""docs/data.md: names every field of the data that ships."""

from __future__ import annotations

import json
import re
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


def test_every_file_that_ships_is_described() -> None:
    told = PAGE + (ROOT / "docs/result-files.md").read_text(encoding="utf-8")
    for path in SHIPPED.rglob("*"):
        assert path.is_dir() or path.name in told, path
