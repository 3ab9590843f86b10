"""The plan: both suites in common blocks, order, seeds, shards, primes and filled-in flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config import Config, load_config, parse_config
from runner.errors import ConfigError
from runner.plan import (
    Plan,
    bench_seed,
    build_plan,
    needs_measured,
    parse_shard,
    prime_flags,
    prime_for,
    resolve_flags,
    shuffled_arms,
)
from runner.plan_view import plan_disk_bytes, render_plan

ROOT = Path(__file__).parent.parent
CONFIG = load_config(ROOT / "campaign.toml")
BOTH = ("published", "mechanism")
OWN = ("overhead", "neighbour")  # of the method itself


def with_seed(seed: int) -> Config:
    return parse_config(CONFIG.text.replace("\nseed = 1 ", f"\nseed = {seed} "), CONFIG.path)


def run_ids(plan: Plan) -> list[str]:
    return [run.run_id for run in plan.runs]


# -- what is planned -----------------------------------------------------------------------------------------


def test_published_suite_is_the_forty_runs_of_the_study() -> None:
    plan = build_plan(CONFIG, ["published"])
    assert len(plan.runs) == 40
    assert set(run_ids(plan)) == {
        f"{model}.{arm}.{profile}.r{repetition}"
        for model in ("7b", "32b")
        for arm in ("graphs", "eager")
        for profile in ("sporadic", "sustained")
        for repetition in range(1, 6)
    }


def test_mechanism_suite() -> None:
    plan = build_plan(CONFIG, ["mechanism"])
    cells = {(block.model, block.profile): set(block.arms) for block in plan.blocks}
    own = {"graphs_kv_matched", "eager_kv_matched", "compile_only", "graphs_trimmed", "graphs_unpadded"}
    assert cells == {
        ("32b", "sustained"): {"graphs", "eager"} | own,
        ("7b", "sustained"): {"graphs", "eager", "graphs_trimmed"},
        ("32b", "sustained_varied"): {"graphs", "eager", "graphs_trimmed"},
    }
    counts = {(m, p): sum(b.model == m and b.profile == p for b in plan.blocks) for m, p in cells}
    assert counts == {("32b", "sustained"): 5, ("7b", "sustained"): 5, ("32b", "sustained_varied"): 3}


def test_the_other_suites_are_parts_of_these_two() -> None:
    whole = set(run_ids(build_plan(CONFIG, BOTH)))
    assert all(set(run_ids(build_plan(CONFIG, [s]))) <= whole for s in CONFIG.suites if s not in (*OWN, "loops"))
    more = {run_id for run_id in run_ids(build_plan(CONFIG, ["loops"])) if run_id not in whole}
    assert {run_id.rpartition(".")[2] for run_id in more} == {"r6", "r7"}  # beyond the study's repetitions
    assert whole.isdisjoint(run_ids(build_plan(CONFIG, OWN)))


def test_suites_together_share_blocks_and_repeat_no_run() -> None:
    plan = build_plan(CONFIG, BOTH)
    ids = run_ids(plan)
    assert len(ids) == len(set(ids)) == 79
    assert set(ids) == {run_id for suite in BOTH for run_id in run_ids(build_plan(CONFIG, [suite]))}
    assert len({block.block_id for block in plan.blocks}) == len(plan.blocks) == 23


def test_order_of_work() -> None:
    plan = build_plan(CONFIG, BOTH)
    assert [block.block_id for block in plan.blocks[:6]] == [
        "32b.sustained.r1",
        "7b.sustained.r1",
        "32b.sporadic.r1",
        "7b.sporadic.r1",
        "32b.sustained_varied.r1",
        "32b.sustained.r2",
    ]
    repetitions = [block.repetition for block in plan.blocks]
    assert repetitions == sorted(repetitions)
    assert build_plan(CONFIG, tuple(reversed(BOTH))) == plan  # the file's order, not the command line's


def test_runs_of_a_block_follow_its_order() -> None:
    for block in build_plan(CONFIG, BOTH).blocks:
        runs = block.runs()
        assert [run.arm for run in runs] == list(block.arms)
        assert [run.order_in_block for run in runs] == list(range(len(runs)))
        assert {run.seed for run in runs} == {block.seed}
        assert block.block_id == f"{block.model}.{block.profile}.r{block.repetition}"


def test_every_id_is_a_safe_folder_name() -> None:
    plan = build_plan(CONFIG, BOTH)
    names = [*run_ids(plan), *(p.prime_id for p in plan.primes), *(b.block_id for b in plan.blocks)]
    assert all(re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+){2,3}", name) for name in names)


# -- seeds and order -----------------------------------------------------------------------------------------


def test_prompts_differ_by_repetition_and_by_nothing_else() -> None:
    blocks = build_plan(CONFIG, BOTH).blocks
    assert {(b.repetition, b.seed) for b in blocks} == {(n, bench_seed(1, n)) for n in range(1, 6)}
    assert len({bench_seed(seed, n) for seed in range(50) for n in range(1, 100)}) == 50 * 99
    assert bench_seed(1_000_000, 99) < 2**31


def test_arm_order_is_the_seeds_and_stays_as_first_published() -> None:
    plan = build_plan(CONFIG, BOTH)
    assert plan.blocks[0].arms == (
        "graphs",
        "graphs_unpadded",
        "compile_only",
        "graphs_trimmed",
        "eager",
        "graphs_kv_matched",
        "eager_kv_matched",
    )
    assert build_plan(CONFIG, BOTH) == plan
    other = build_plan(with_seed(2), BOTH)
    assert set(run_ids(other)) == set(run_ids(plan))
    assert [b.arms for b in other.blocks] != [b.arms for b in plan.blocks]


def test_arm_order_does_not_depend_on_the_listing() -> None:
    arms = ["a", "b", "c", "d"]
    assert shuffled_arms(1, "m.p.r1", arms) == shuffled_arms(1, "m.p.r1", arms[::-1])


def test_each_arm_is_first_about_equally_often() -> None:
    firsts = [shuffled_arms(7, f"m.p.r{n}", ["graphs", "eager", "third"])[0] for n in range(900)]
    assert all(240 < firsts.count(arm) < 360 for arm in ("graphs", "eager", "third"))


# -- part of a plan ------------------------------------------------------------------------------------------


def test_glob_selects_whole_blocks() -> None:
    plan = build_plan(CONFIG, BOTH, "32b.sustained.r[12]")
    assert [block.block_id for block in plan.blocks] == ["32b.sustained.r1", "32b.sustained.r2"]
    assert {prime.model for prime in plan.primes} == {"32b"}
    whole = {block.block_id: block for block in build_plan(CONFIG, BOTH).blocks}
    assert all(whole[block.block_id] == block for block in plan.blocks)


@settings(deadline=None, max_examples=60)
@given(count=st.integers(1, 40), suites=st.sampled_from([BOTH, ("published",), ("mechanism",)]))
def test_shards_are_whole_blocks_and_their_union_is_the_plan(count: int, suites: tuple[str, ...]) -> None:
    plan = build_plan(CONFIG, suites)
    shards = [build_plan(CONFIG, suites, shard=(number, count)) for number in range(1, count + 1)]
    blocks = [block for shard in shards for block in shard.blocks]
    assert sorted(blocks, key=lambda b: b.block_id) == sorted(plan.blocks, key=lambda b: b.block_id)
    for shard in shards:
        order = [plan.blocks.index(block) for block in shard.blocks]
        assert order == sorted(order)
        needed = {prime for block in shard.blocks for prime in shard.primes_for(block, CONFIG)}
        assert needed == set(shard.primes)


def test_shard_beyond_the_blocks_is_empty_not_an_error() -> None:
    plan = build_plan(CONFIG, BOTH, shard=(40, 40))
    assert (plan.blocks, plan.primes, plan.estimate_s) == ((), (), 0)
    assert "0 runs" in render_plan(plan, CONFIG)


@pytest.mark.parametrize(
    ("suites", "glob", "expected"),
    [
        ([], None, "no suite chosen"),
        (["publshed"], None, 'no suite "publshed"'),
        (["published"], "70b.*", 'no block matches "70b.*"'),
    ],
)
def test_impossible_selections(suites: list[str], glob: str | None, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
        build_plan(CONFIG, suites, glob)
    assert caught.value.hint


def test_suggestions_for_a_wrong_selection() -> None:
    with pytest.raises(ConfigError) as caught:
        build_plan(CONFIG, ["publshed"])
    assert caught.value.hint == f"did you mean published? allowed: {', '.join(CONFIG.suites)}"
    with pytest.raises(ConfigError) as caught:
        build_plan(CONFIG, ["published"], "x")
    assert "32b.sustained.rN" in caught.value.hint


def test_shard_text() -> None:
    assert parse_shard("2/4") == (2, 4)
    for text in ("", "2", "0/4", "5/4", "a/b", "1/0", "-1/4", "1/4/2", "1.0/4"):
        with pytest.raises(ConfigError, match="not K/N"):
            parse_shard(text)


# -- primes and measured block counts ------------------------------------------------------------------------


def test_one_prime_for_arms_that_share_a_compile_cache() -> None:
    primes = [(p.model, p.arm, set(p.covers)) for p in build_plan(CONFIG, BOTH).primes]
    assert ("32b", "graphs", {"graphs", "graphs_kv_matched"}) in primes
    assert ("32b", "eager", {"eager", "eager_kv_matched"}) in primes
    assert len(primes) == 8
    assert prime_for(CONFIG, "graphs_kv_matched") == "graphs"
    assert prime_for(CONFIG, "graphs_unpadded") == "graphs_unpadded"


def test_a_prime_never_has_a_block_count() -> None:
    assert prime_flags(CONFIG, "compile_only") == ("-cc.cudagraph_mode=NONE",)
    assert prime_flags(CONFIG, "eager_kv_matched") == ("--enforce-eager",)
    primes = build_plan(CONFIG, BOTH).primes
    assert not any("num-gpu-blocks" in flag for prime in primes for flag in prime.flags)


def test_arms_whose_count_is_needed_are_primed_before_they_are() -> None:
    suite = '[[suite.one]]\nmodels = ["32b"]\narms = ["graphs_unpadded"]\nprofiles = ["sustained"]\n'
    plan = build_plan(parse_config(CONFIG.text + suite, CONFIG.path), ["one"])
    assert [prime.arm for prime in plan.primes] == ["eager", "graphs_unpadded"]
    assert [prime.arm for prime in plan.primes_for(plan.blocks[0], CONFIG)] == ["eager", "graphs_unpadded"]
    assert needs_measured(CONFIG, "graphs_unpadded") == {"eager"}
    assert needs_measured(CONFIG, "graphs") == set()


def test_measured_counts_are_filled_in() -> None:
    measured = {"eager": 2390, "graphs": 2155, "graphs_trimmed": 2300}
    assert resolve_flags(CONFIG, "32b", "graphs_kv_matched", measured) == ("--num-gpu-blocks-override=2390",)
    assert resolve_flags(CONFIG, "32b", "eager_kv_matched", measured)[-1] == "--num-gpu-blocks-override=2155"


def test_a_count_not_yet_measured_names_the_prime() -> None:
    with pytest.raises(ConfigError, match="needs the KV block count of eager") as caught:
        resolve_flags(CONFIG, "32b", "graphs_kv_matched", {"graphs": 2155})
    assert "32b.eager.prime" in caught.value.hint


def test_an_arm_without_a_count_is_pinned_to_its_own() -> None:
    measured = {"graphs": 2155, "graphs_trimmed": 2300}
    assert resolve_flags(CONFIG, "32b", "graphs", measured) == ("--num-gpu-blocks-override", "2155")
    assert resolve_flags(CONFIG, "32b", "graphs_trimmed", measured)[1:] == ("--num-gpu-blocks-override", "2300")
    with pytest.raises(ConfigError, match="not measured yet"):
        resolve_flags(CONFIG, "32b", "graphs", {})
    free = parse_config(CONFIG.text.replace("pin_kv_blocks = true", "pin_kv_blocks = false"), CONFIG.path)
    assert resolve_flags(free, "32b", "graphs", {}) == ()


def test_pinned_count_of_an_arm_that_another_ones_prime_covers() -> None:
    text = CONFIG.text.replace("[arm.eager]", "[arm.graphs_again]\nflags = []\n[arm.eager]", 1)
    again = parse_config(text, CONFIG.path)
    assert resolve_flags(again, "32b", "graphs_again", {"graphs": 2155})[-1] == "2155"


# -- the printed plan ----------------------------------------------------------------------------------------


def test_printed_plan_has_every_run_in_order_and_totals() -> None:
    plan = build_plan(CONFIG, BOTH)
    text = render_plan(plan, CONFIG)
    places = [text.index(f" {run_id} ") for run_id in run_ids(plan)]
    assert places == sorted(places)
    assert "suite published, mechanism: 79 runs in 23 blocks, 8 primes: about 3 h" in text
    assert "assumed" not in text
    assert 5e6 < plan_disk_bytes(plan, CONFIG) < 25e6


def test_printed_plan_says_what_is_simulated_and_what_is_assumed() -> None:
    demo = load_config(ROOT / "examples/demo.toml")
    assert "SIMULATED" in render_plan(build_plan(demo, BOTH), demo)
    vague = parse_config(CONFIG.text.replace("sporadic = 95, sustained = 26", "sporadic = 95"), CONFIG.path)
    text = render_plan(build_plan(vague, BOTH), vague)
    assert "120 s of load assumed, window_s says nothing: 7b.sustained" in text


def test_demo_is_small_and_shows_the_arms_that_matter() -> None:
    demo = load_config(ROOT / "examples/demo.toml")
    plan = build_plan(demo, BOTH)
    assert len(plan.runs) + len(plan.primes) <= 25
    assert plan.estimate_s < 120
    assert {run.arm for run in plan.runs} == {"graphs", "eager", "graphs_kv_matched", "graphs_trimmed"}
