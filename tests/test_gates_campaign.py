"""Gates over several runs: each fires on the runs that it exists for, and none on a campaign as it should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.db import connect, read_tables
from analysis.formats.run_record import EngineIdentity, RunRecord, Timeline
from analysis.gates_campaign import GATES, Campaign, judge_together
from analysis.load import load
from tests import make_store
from tests.records import GPU, record

ARMS = ("graphs", "eager", "graphs_kv_matched")
PROFILE = {
    "prompts": 500, "concurrency": 64, "input_tokens": 1024, "output_tokens": 128, "range_ratio": 0.0,
}  # fmt: skip
CONFIGURATION: dict[str, Any] = {
    "campaign": {"name": "test"},
    "arms": {
        "graphs": {"flags": []},
        "eager": {"flags": ["--enforce-eager"]},
        "graphs_kv_matched": {"flags": ["--num-gpu-blocks-override={eager.num_gpu_blocks}"]},
    },
    "engine": {"flags": ["--dtype", "bfloat16"]},
    "profiles": {"sustained": PROFILE},
}
BLOCKS = {"graphs": 1869, "eager": 2104, "graphs_kv_matched": 2104}


def run(arm: str, repetition: int = 1, **changes: Any) -> RunRecord:
    flags = [flag for flag in CONFIGURATION["arms"].get(arm, {"flags": ()})["flags"] if "{" not in flag]
    values: dict[str, Any] = {
        "block_arms": ARMS,
        "num_gpu_blocks": BLOCKS[arm],
        "serve_argv": ("vllm", "serve", "--dtype", "bfloat16", *flags),
        "num_prompts": 500,
        "concurrency": 64,
        "input_tokens": 1024,
        "output_tokens": 128,
        "range_ratio": 0.0,
    }
    return record(f"32b.{arm}.sustained.r{repetition}", **(values | changes))


def life(exec_ns: int, exited_ns: int) -> Timeline:
    return Timeline(run_begin_ns=exec_ns - 1, exec_ns=exec_ns, exited_ns=exited_ns)


def judged(*changed: RunRecord, configuration: dict[str, Any] = CONFIGURATION) -> dict[str, list[str]]:
    """Codes by arm and repetition, of two blocks in which these runs take the place of the good ones."""
    runs = {(r.arm, r.repetition, r.attempt): r for n in (1, 2) for r in (run(arm, n) for arm in ARMS)}
    runs |= {(r.arm, r.repetition, r.attempt): r for r in changed}
    primes = [record(f"32b.{arm}.prime", num_gpu_blocks=1) for arm in ("graphs",)]
    found = judge_together(Campaign((*runs.values(), *primes), configuration, {"s1": "[]", "s2": "[1]"}))
    return {
        folder.removeprefix("32b.").replace(".sustained", ""): [r.code for r in reasons]
        for folder, reasons in found.items()
    }


def test_none_fires_on_good_blocks() -> None:
    assert judged() == {}
    assert judged(configuration={}) == {}


OTHER_GPU = GPU.model_copy(update={"uuid": "GPU-2"})
CASES: dict[str, list[tuple[RunRecord, dict[str, list[str]]]]] = {
    "block_on_several_gpus": [
        (run("eager", gpu=OTHER_GPU), {f"{arm}.r1.p1a1": ["block_on_several_gpus"] for arm in ARMS}),
        (run("eager", machine_id="boot-2"), {f"{arm}.r1.p1a1": ["block_on_several_gpus"] for arm in ARMS}),
    ],
    "order_disagrees": [],  # needs the moments of two: below
    "not_as_configured": [
        (run("eager", campaign="other"), {"eager.r1.p1a1": ["not_as_configured"]}),
        (run("eager", serve_argv=("vllm", "serve")), {"eager.r1.p1a1": ["not_as_configured"]}),
        (run("graphs", serve_argv=("vllm", "--enforce-eager")), {"graphs.r1.p1a1": ["not_as_configured"]}),
        (run("graphs", concurrency=32), {"graphs.r1.p1a1": ["not_as_configured"]}),
        (run("graphs", num_prompts=50), {"graphs.r1.p1a1": ["not_as_configured"]}),
        (run("graphs", output_tokens=64), {"graphs.r1.p1a1": ["not_as_configured"]}),
    ],
    "kv_not_matched": [
        (
            run("graphs_kv_matched", 2, num_gpu_blocks=2103),
            {"graphs_kv_matched.r2.p1a1": ["kv_not_matched", "kv_blocks_differ"]},
        ),
    ],
    "measured_twice": [],  # needs two: below
    "pinned_kv_blocks_differ": [],
    "kv_blocks_differ": [
        (run("graphs", 2, num_gpu_blocks=1868, wall_start="2026-01-02"), {"graphs.r2.p1a1": ["kv_blocks_differ"]}),
    ],
}  # fmt: skip


def test_every_gate_has_a_breaking_input() -> None:
    assert list(CASES) == [gate.code for gate in GATES]


@pytest.mark.parametrize(("code", "way"), [(code, way) for code, ways in CASES.items() for way in range(len(ways))])
def test_gate_fires_on_these_runs_only(code: str, way: int) -> None:
    broken, expected = CASES[code][way]
    assert judged(broken) == expected


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({"files_sha256": {"steps.parquet": "a"}}, {"files_sha256": {"steps.parquet": "a"}}),
        ({"timeline": life(5, 20)}, {"timeline": life(19, 40)}),
        ({"timeline": life(5, 20)}, {"timeline": life(5, 20)}),
    ],
)
def test_a_copy_of_a_run_and_its_original_are_both_invalid(changes: dict[str, Any], again: dict[str, Any]) -> None:
    copies = {f"eager.r{n}.p1a1": ["measured_twice"] for n in (1, 2)}
    assert judged(run("eager", **changes), run("eager", 2, **again)) == copies


def test_runs_one_after_the_other_or_on_two_gpus_were_measured_once() -> None:
    assert judged(run("eager", timeline=life(5, 20)), run("eager", 2, timeline=life(20, 40))) == {}
    blocks = [run(arm, 2, timeline=life(6, 21), gpu=OTHER_GPU) for arm in ARMS[1:2]]
    assert "measured_twice" not in str(judged(run("eager", timeline=life(5, 20)), *blocks))
    simulated = EngineIdentity(kind="stand-in", version="0.23.0", simulated=True)
    same: dict[str, Any] = {"files_sha256": {"steps.parquet": "a"}, "engine": simulated}
    assert "measured_twice" not in str(judged(run("eager", **same), run("eager", 2, **same)))


def placed(arm: str, place: int, begin_s: int, **changes: Any) -> RunRecord:
    return run(arm, 1, order_in_block=place, timeline=Timeline(run_begin_ns=begin_s * 10**9), **changes)


def test_runs_whose_places_and_moments_differ_are_invalid() -> None:
    wrong = ["order_disagrees"]
    assert judged(placed("graphs", 0, 5), placed("eager", 1, 9)) == {}
    assert judged(placed("graphs", 1, 5), placed("eager", 0, 9)) == {"graphs.r1.p1a1": wrong, "eager.r1.p1a1": wrong}
    # the third stands between them, and began between them
    third = placed("graphs_kv_matched", 1, 7)
    assert set(judged(placed("graphs", 2, 5), placed("eager", 0, 9), third)) == {f"{arm}.r1.p1a1" for arm in ARMS}


def test_only_a_later_attempt_or_sitting_comes_after_its_place() -> None:
    eager = placed("eager", 1, 5)
    assert judged(placed("graphs", 0, 9, attempt=2), eager) == {}
    assert judged(placed("graphs", 0, 9, sitting_id="s2"), eager) == {}  # its first folder could not be read
    again = placed("eager", 1, 3, attempt=2)  # before the first attempt of the one before it
    assert judged(placed("graphs", 0, 4), again) == {
        "graphs.r1.p1a1": ["order_disagrees"],
        "eager.r1.p1a2": ["order_disagrees"],
    }


def test_pinned_blocks_that_differ_make_the_later_run_invalid() -> None:
    configuration = CONFIGURATION | {"engine": {**CONFIGURATION["engine"], "pin_kv_blocks": True}}
    later = {"num_gpu_blocks": 1868, "wall_start": "2026-01-02"}
    assert judged(run("graphs", 2, **later), configuration=configuration) == {
        "graphs.r2.p1a1": ["pinned_kv_blocks_differ"]
    }
    assert judged(configuration=configuration) == {}


def test_an_attempt_does_not_count_because_a_later_one_does_not_fit() -> None:
    both = [run("graphs_kv_matched", 2, attempt=n, num_gpu_blocks=2103) for n in (1, 2)]
    found = judged(*both)
    assert {folder for folder, codes in found.items() if "kv_not_matched" in codes} == {
        f"graphs_kv_matched.r2.p1a{n}" for n in (1, 2)
    }


def test_another_setup_has_other_pools() -> None:
    """Another card, or a sitting that differs in what must agree."""
    blocks = {"graphs": 3000, "eager": 3300, "graphs_kv_matched": 3300}
    bigger = GPU.model_copy(update={"memory_total_mib": 143771, "name": "Big GPU"})
    assert judged(*(run(arm, 2, num_gpu_blocks=n, gpu=bigger) for arm, n in blocks.items())) == {}
    assert judged(*(run(arm, 2, num_gpu_blocks=n, sitting_id="s2") for arm, n in blocks.items())) == {}
    assert judged(*(run(arm, 2, num_gpu_blocks=n) for arm, n in blocks.items())) != {}


def test_a_prime_starts_without_its_arms_number_of_blocks() -> None:
    configuration = {"arms": {"small": {"flags": ["--num-gpu-blocks-override", "12", "--enforce-eager"]}}}
    prime = record("32b.small.prime", serve_argv=("vllm", "serve", "--enforce-eager"))
    assert judge_together(Campaign((prime,), configuration, {})) == {}
    other = record("32b.small.prime", serve_argv=("vllm", "serve"))
    assert [r.code for r in judge_together(Campaign((other,), configuration, {}))[other.folder]] == [
        "not_as_configured"
    ]
    load = record("32b.small.sustained.r1", serve_argv=("vllm", "serve", "--enforce-eager"))
    assert [r.code for r in judge_together(Campaign((load,), configuration, {}))[load.folder]] == ["not_as_configured"]


def test_an_attempt_that_was_made_again_does_not_spoil_its_block() -> None:
    again = run("eager", attempt=2)
    assert judged(run("eager", gpu=OTHER_GPU), again) == {}


def test_evidence_names_the_other_run() -> None:
    runs = (run("graphs"), run("graphs", 2, num_gpu_blocks=1868, wall_start="2026-01-02"))
    ((reason,),) = judge_together(Campaign(runs, CONFIGURATION, {})).values()
    assert reason.evidence == "1868 blocks, 32b.graphs.sustained.r1.p1a1 has 1869"
    assert reason.severity == "warning"


Sittings = dict[str, dict[str, Any]]
AGREE = {"gpu.driver": "580.1", "engine.launcher": "process"}
FACTS: dict[str, Any] = {"gpu": {"driver": "580.1"}, "engine": {"launcher": "process"}, "must_agree": AGREE}


def two_sittings(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    make_store.write_header(root, sittings=("s1", "s2"), **FACTS)
    other = json.loads(json.dumps(FACTS))
    change(other)
    (root / "sittings" / "s2" / "provenance.json").write_text(json.dumps(other))
    for repetition, sitting in ((1, "s1"), (2, "s2")):
        for arm in ("graphs", "eager"):
            make_store.synthetic_run(root, "7b", arm, "sustained", repetition, ("graphs", "eager"), sitting_id=sitting)


def driver(found: dict[str, Any]) -> None:
    found["gpu"]["driver"] = found["must_agree"]["gpu.driver"] = "580.2"


@pytest.mark.parametrize(
    ("change", "setups"),
    [
        (lambda _: None, {"NVIDIA H200, random weights"}),
        (lambda found: found.update(collected="2026-11-29T16:59:00+00:00"), {"NVIDIA H200, random weights"}),
        # an older sitting, in which this fact was not yet among those that must agree
        (lambda found: found["must_agree"].pop("engine.launcher"), {"NVIDIA H200, random weights"}),
        (driver, {f"NVIDIA H200, random weights (gpu.driver 580.{n})" for n in (1, 2)}),
        (
            lambda found: found.pop("gpu"),
            {f"NVIDIA H200, random weights (gpu.driver {driver})" for driver in ("580.1", "not reported")},
        ),
    ],
)
def test_runs_that_differ_in_what_must_agree_are_never_pooled(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], setups: set[str]
) -> None:
    two_sittings(tmp_path / "store", change)
    load(tmp_path / "store", tmp_path / "d.duckdb")
    with connect(tmp_path / "d.duckdb") as con:
        rows = con.execute("SELECT setup, n FROM effects WHERE metric = 'output_tok_s' AND arm_a = 'graphs'").fetchall()
        assert {setup for setup, _ in rows} == setups
        assert {n for _, n in rows} == {2 // len(setups)}
        shown = {row[0] for table in read_tables(con) if table.name.endswith("throughput") for row in table.rows}
        assert shown == setups
