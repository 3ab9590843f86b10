"""PROVENANCE.md: made from the sittings of the results that ship, and up to date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.errors import LoadError
from report.provenance import render_provenance
from tests import make_store

ROOT = Path(__file__).parent.parent


def test_the_page_is_that_of_the_results() -> None:
    (results,) = (path.parent for path in (ROOT / "results").glob("*/campaign.json"))
    assert (ROOT / "PROVENANCE.md").read_text(encoding="utf-8") == render_provenance(results), "run `make provenance`"


def test_facts_that_differ_name_their_sittings(tmp_path: Path) -> None:
    root = make_store.write_header(
        tmp_path / "store", "a|b", sittings=("s1", "s2"),
        gpu={"uuid": "GPU-1", "vbios": None}, must_agree={"gpu.vbios": None},
        engine={"launcher": "process", "image": "vllm@sha256:1", "packages": {"torch": "2.11", "duckdb": "2"}},
        models={"7b": {"files": {"a.json": {"bytes": 3, "sha256": "ab"}, "b.bin": {"bytes": 4, "sha256": None}}}},
    )  # fmt: skip
    path = root / "sittings" / "s2" / "provenance.json"
    found = json.loads(path.read_text())
    found["gpu"]["uuid"] = "GPU-2"
    path.write_text(json.dumps(found))
    make_store.synthetic_run(root, "7b", "eager", "sustained", 1, ("eager",), short=3)
    make_store.synthetic_run(root, "7b", "eager", "sustained", 2, ("eager",))
    page = render_provenance(root)
    assert page.startswith("# Provenance of a\\|b\n")
    for row in (
        "| S1 | s1 | None | GPU-1 | 1 | 0 | 1 |",
        "| S2 | s2 | None | GPU-2 | 0 | 0 | 0 |",
        "| gpu.vbios | not reported | all |",
        "| uuid | GPU-1 | S1 |",
        "| uuid | GPU-2 | S2 |",
        "| packages | duckdb 2, torch 2.11 | all |",
        "| 7b.files.a.json | 3 bytes, SHA-256 ab | all |",
        "| 7b.files.b.bin | 4 bytes, SHA-256 not taken | all |",
    ):
        assert row in page.splitlines(), row
    assert "vllm@sha256:1" not in page  # configured; no container ran


def test_a_sitting_that_cannot_be_read(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    (root / "sittings" / "s1" / "provenance.json").write_text("{")
    with pytest.raises(LoadError, match=r"provenance\.json cannot be read"):
        render_provenance(root)
