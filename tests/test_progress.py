"""Resume by blocks: what counts as done, what is continued, what is run anew."""

from __future__ import annotations

import pytest

from runner.plan import Block
from runner.progress import Place, block_state, measured_primes, primes_needed, typical_s
from tests.records import GPU, record

HERE = Place("boot-1", "GPU-1", "cache-1")
ELSEWHERE = Place("boot-2", "GPU-2", "cache-1")


@pytest.fixture
def block() -> Block:
    return Block(
        block_id="7b.sustained.r1",
        model="7b",
        profile="sustained",
        repetition=1,
        arms=("graphs", "eager"),
        seed=1,
        estimate_s=1.0,
    )


def test_block_without_records_is_new(block: Block) -> None:
    state = block_state(block, [], HERE)
    assert (state.status, state.pass_number, state.missing_arms) == ("new", 1, ("graphs", "eager"))


def test_block_is_done_only_when_every_arm_is_valid_in_one_pass(block: Block) -> None:
    graphs, eager = record(), record("7b.eager.sustained.r1")
    assert block_state(block, [graphs, eager], HERE).status == "done"
    assert block_state(block, [graphs, eager], ELSEWHERE).status == "done"
    state = block_state(block, [graphs, record("7b.eager.sustained.r1", status="invalid")], HERE)
    assert (state.status, state.missing_arms, state.attempts["eager"]) == ("partial", ("eager",), 1)


def test_arms_valid_in_different_passes_do_not_make_a_block(block: Block) -> None:
    records = [record(), record("7b.eager.sustained.r1", pass_number=2)]
    assert block_state(block, records, HERE).status == "partial"


def test_one_pass_on_two_machines_does_not_count(block: Block) -> None:
    records = [record(), record("7b.eager.sustained.r1", machine_id="boot-2")]
    assert block_state(block, records, HERE).status != "done"


def test_one_pass_on_two_gpus_does_not_count(block: Block) -> None:
    other = GPU.model_copy(update={"uuid": "GPU-2"})
    records = [record(), record("7b.eager.sustained.r1", gpu=other)]
    assert block_state(block, records, HERE).status != "done"


def test_block_cut_off_elsewhere_is_run_whole_as_the_next_pass(block: Block) -> None:
    state = block_state(block, [record()], ELSEWHERE)
    assert (state.status, state.pass_number, state.missing_arms) == ("new", 2, ("graphs", "eager"))


def test_block_cut_off_here_goes_on(block: Block) -> None:
    state = block_state(block, [record()], HERE)
    assert (state.status, state.pass_number, state.missing_arms) == ("partial", 1, ("eager",))


def test_more_arms_than_before_start_a_new_pass(block: Block) -> None:
    records = [record(block_arms=("graphs",))]
    state = block_state(block, records, HERE)
    assert (state.pass_number, state.missing_arms) == (2, ("graphs", "eager"))


def test_fewer_arms_than_before_are_done(block: Block) -> None:
    arms = ("graphs", "eager", "compile_only")
    records = [record(f"7b.{arm}.sustained.r1", block_arms=arms) for arm in arms]
    assert block_state(block, records, HERE).status == "done"


def test_prime_counts_for_its_cache() -> None:
    prime = record("7b.graphs.prime")
    assert primes_needed([prime], HERE, "7b", ["graphs"]) == []
    assert primes_needed([prime], HERE, "7b", ["graphs", "eager", "eager"]) == ["eager"]
    assert primes_needed([prime], HERE, "32b", ["graphs"]) == ["graphs"]
    assert primes_needed([prime], Place("boot-1", "GPU-1", "cache-2"), "7b", ["graphs"]) == ["graphs"]
    assert primes_needed([record("7b.graphs.prime", status="failed")], HERE, "7b", ["graphs"]) == ["graphs"]


def test_carried_cache_needs_one_start_on_the_new_machine() -> None:
    carried = [record("7b.graphs.prime"), record("7b.eager.prime")]
    assert primes_needed(carried, ELSEWHERE, "7b", ["graphs", "eager"]) == ["graphs"]
    assert primes_needed(carried, ELSEWHERE, "7b", ["graphs", "new"]) == ["new"]
    first = record("7b.eager.prime", pass_number=2, machine_id="boot-2")
    assert primes_needed([*carried, first], ELSEWHERE, "7b", ["graphs"]) == []


def test_earliest_valid_prime_sets_the_block_count() -> None:
    records = [
        record("7b.graphs.prime", pass_number=2, wall_start="2026-01-02T00:00:00+00:00", num_gpu_blocks_natural=101),
        record("7b.graphs.prime", wall_start="2026-01-01T00:00:00+00:00", num_gpu_blocks_natural=100),
        record("7b.eager.prime", status="failed", num_gpu_blocks_natural=110),
    ]
    counts = {arm: prime.num_gpu_blocks_natural for arm, prime in measured_primes(records, "7b").items()}
    assert counts == {"graphs": 100}
    assert measured_primes(records, "32b") == {}


def test_typical_duration_is_the_median_of_valid_runs() -> None:
    records = [record(seconds=s) for s in (10, 20, 90)] + [record(seconds=1, status="failed")]
    assert typical_s(records, "run", "7b", "graphs", "sustained", 5.0) == 20
    assert typical_s(records, "run", "7b", "eager", "sustained", 5.0) == 5.0
