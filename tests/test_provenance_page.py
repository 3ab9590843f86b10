"""PROVENANCE.md: made from the sittings of the results that ship, and up to date."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.load import load
from report.render import render
from tests import make_store

ROOT = Path(__file__).parent.parent


def page(results: Path, work: Path) -> str:
    load(results, work / "d.duckdb")
    render(work / "d.duckdb", work / "out")
    return (work / "out" / "PROVENANCE.md").read_text(encoding="utf-8")


def test_the_page_is_that_of_the_results(tmp_path: Path) -> None:
    (results,) = (path.parent for path in (ROOT / "results").glob("*/campaign.json"))
    assert (ROOT / "PROVENANCE.md").read_text(encoding="utf-8") == page(results, tmp_path), "run `make provenance`"


def test_facts_that_differ_name_their_sittings(tmp_path: Path) -> None:
    root = make_store.write_header(
        tmp_path / "store", "a|b", sittings=("s1", "s2"),
        gpu={"uuid": "GPU-h200", "vbios": None}, must_agree={"gpu.vbios": None},
        engine={"launcher": "process", "image": "vllm@sha256:1", "packages": {"torch": "2.11", "x.y": "2"}},
        models={"7b": {"files": {"a.json": {"bytes": 3, "sha256": "ab"}, "b.bin": {"bytes": 4, "sha256": None}}}},
    )  # fmt: skip
    path = root / "sittings" / "s2" / "provenance.json"
    found = json.loads(path.read_text())
    found["gpu"]["uuid"] = "GPU-2"
    path.write_text(json.dumps(found))
    make_store.synthetic_run(root, "7b", "eager", "sustained", 1, ("eager",), short=3)
    make_store.synthetic_run(root, "7b", "eager", "sustained", 2, ("eager",))
    text = page(root, tmp_path)
    assert text.startswith("# Provenance of a\\|b\n")
    for row in (
        "| S1 | s1 | not measured | GPU-h200 | 1 | 0 | 1 |",
        "| S2 | s2 | not measured | GPU-2 | 0 | 0 | 0 |",
        "| gpu.vbios | not reported | all |",
        "| gpu.uuid | GPU-h200 | S1 |",
        "| gpu.uuid | GPU-2 | S2 |",
        "| engine.packages | torch 2.11, x.y 2 | all |",
        "| models.7b.files.a.json | bytes 3, sha256 ab | all |",
        "| models.7b.files.b.bin | bytes 4, sha256 not reported | all |",
    ):
        assert row in text.splitlines(), row
    assert "vllm@sha256:1" not in text  # configured; no container ran


def test_a_simulated_campaign_says_so(tmp_path: Path) -> None:
    root = make_store.write_header(tmp_path / "store")
    make_store.synthetic_run(root, "7b", "eager", "sustained", 1, ("eager",), simulated=True, gpu=None)
    load(root, tmp_path / "d.duckdb")
    render(tmp_path / "d.duckdb", tmp_path / "out")
    text = (tmp_path / "out" / "PROVENANCE.SIMULATED.md").read_text()
    assert [line[:14] for line in text.splitlines() if line.startswith("#")] == [
        "# SIMULATED: P",
        *["## SIMULATED: "] * 3,
    ]
