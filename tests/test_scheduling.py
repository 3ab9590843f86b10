"""The scheduling model against the recorded steps of the real engine."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from analysis.formats.steps import parse_steps
from analysis.scheduling import Scheduler, SchedulerConfig, SchedulingError, Step, default_capture_sizes, predict
from tests.recorded import EAGER, GRAPHS, GRAPHS_WARM, MATCHED, steps_csv, text
from tests.replay import replay, simulate, small_pool, summarise
from tests.spans import waiting_span

PUBLISHED = [(1024, 128)] * 500
SMALL = [(120, 300)] * 16


def steps_of(blocks: int) -> list[Step]:
    return simulate(SchedulerConfig(blocks, capture_sizes=default_capture_sizes()), PUBLISHED, 64)


@pytest.mark.parametrize(
    ("blocks", "steps", "running", "preempted", "padded_share"),
    [(1869, 2455, 26.1, 55, 0.167), (2104, 2197, 29.2, 48, 0.056), (2053, 2200, 29.2, 49, 0.08)],
)
def test_waiting_span_of_the_recorded_workload(
    blocks: int, steps: int, running: float, preempted: int, padded_share: float
) -> None:
    got, span = summarise(steps_of(blocks)), waiting_span(steps_of(blocks))
    assert got.waiting_steps == pytest.approx(steps, rel=0.01)
    assert got.mean_running == pytest.approx(running, rel=0.01)
    assert abs(got.preempted - preempted) <= 2
    assert span is not None
    assert span.padded_share_full == pytest.approx(padded_share, abs=0.002)


@pytest.mark.parametrize(("run", "blocks"), [(GRAPHS, 1869), (GRAPHS_WARM, 1869), (MATCHED, 2104), (EAGER, 2104)])
def test_steps_follow_the_recorded_ones(run: str, blocks: int) -> None:
    trace = parse_steps(steps_csv(run))
    real = waiting_span(trace.rows)
    assert real is not None
    model = summarise(steps_of(blocks))
    assert model.waiting_steps == real.steps
    assert model.mean_running == pytest.approx(real.mean_running, rel=0.001)
    assert abs(model.preempted - real.preempted) <= 1
    batches = Counter(row.unpadded_tokens for row in trace.rows if (row.unpadded_tokens or 0) > 15)
    predicted = Counter(step.unpadded_tokens for step in steps_of(blocks))
    decodes = [size for size in batches if size and size <= 32]
    differing = sum(abs(batches[size] - predicted[size]) for size in decodes)
    assert differing <= 0.02 * sum(batches[size] for size in decodes)


def test_every_step_of_the_cpu_engine_follows_from_its_arrivals() -> None:
    trace = parse_steps(text("cpu-preemptions", "steps.csv"))
    assert len(trace.rows) == 1856
    assert sum(row.preempted or 0 for row in trace.rows) == 10
    assert replay(trace.rows) == (0, 16, 10)
    differing, _, _ = replay([row._replace(waiting=1) if row.step == 5 else row for row in trace.rows])
    assert differing > 0


def test_cpu_engine_preemptions_with_clients_slower_than_its_steps() -> None:
    """Steps of the tiny model take 2 ms, so that the second wave comes when the first has ended."""
    preempted = [summarise(simulate(small_pool(), SMALL, 8, client_lag_steps=lag)).preempted for lag in (500, 5000)]
    assert preempted == [12, 12]


def test_tokens_and_blocks_are_conserved() -> None:
    lengths = [(100 + 37 * i % 900, 1 + 11 * i % 200) for i in range(120)]
    for asynchronous in (True, False):
        config = SchedulerConfig(300, max_num_batched_tokens=512, asynchronous=asynchronous)
        steps = simulate(config, lengths, 20)
        emitted = Counter(request for step in steps for request in step.emitted)
        assert emitted == {str(i): output for i, (_, output) in enumerate(lengths)}
        assert [step for step in steps if step.finished][-1].kv_usage == 0
        assert sum(step.prompt_tokens or 0 for step in steps) == sum(prompt for prompt, _ in lengths)
        assert all(0 <= step.kv_usage <= 1 and (step.unpadded_tokens or 0) <= 512 for step in steps)


def test_without_preemption_the_tokens_run_are_the_tokens_asked_for() -> None:
    steps = simulate(SchedulerConfig(2000), [(1024, 128)] * 3, 3)
    assert summarise(steps).scheduled_tokens == 3 * (1024 + 127)


def test_more_blocks_never_need_more_steps() -> None:
    counts = [summarise(steps_of(blocks)).steps for blocks in range(1869, 2400, 100)]
    assert all(later <= earlier + 2 for earlier, later in pairwise(counts))


def test_asynchronous_scheduling_ends_a_request_one_step_later() -> None:
    """The last token is in flight while the next step is planned, so its blocks come free a step later."""
    for asynchronous, second_starts_after in ((False, 2), (True, 3)):
        config = SchedulerConfig(3, max_model_len=32, asynchronous=asynchronous)
        scheduler = Scheduler(config)
        scheduler.add("a", 17, 2)
        scheduler.add("b", 17, 2)
        steps = []
        while (step := scheduler.step()) is not None:
            steps.append(step)
        order = [step.emitted for step in steps]
        assert order.index(("b",)) == second_starts_after
        assert [step.unpadded_tokens for step in steps if step.emitted] == [17, 1, 17, 1]


@pytest.mark.parametrize("seed", range(40))
def test_steps_passed_over_are_those_of_the_whole_simulation(seed: int) -> None:
    rng = random.Random(seed)
    usual = (rng.randint(1, 300), rng.randint(1, 120))
    each = (usual if seed % 2 else (rng.randint(1, 300), rng.randint(1, 120)) for _ in range(rng.randint(1, 60)))
    lengths = tuple(each)
    size = rng.choice([1, 4, 16, 32])
    need = max(-(-sum(pair) // size) for pair in lengths)
    config = SchedulerConfig(
        need + 1 + rng.randint(0, 3 * need),
        size,
        max_num_batched_tokens=rng.choice([16, 64, 8192]),
        max_num_seqs=rng.choice([2, 8, 1024]),
        capture_sizes=rng.choice([(), default_capture_sizes()]),
        asynchronous=rng.random() < 0.6,
    )
    concurrency, lag = rng.randint(1, 30), rng.choice([0, 1, 2, 50])
    assert predict(config, lengths, concurrency, lag) == summarise(simulate(config, lengths, concurrency, lag))


def test_predicting_passes_over_most_steps() -> None:
    scheduler = Scheduler(SchedulerConfig(200))
    scheduler.add("a", 32, 1000)
    for _ in range(3):
        assert scheduler.step() is not None
    assert scheduler.skip(50) == 50
    scheduler.add("b", 32, 2)
    assert scheduler.skip(50) == 0  # it can be admitted
    while (step := scheduler.step()) is not None and "b" not in step.finished:
        pass
    assert scheduler.step() is not None
    assert scheduler.skip(5000) > 900
    assert scheduler.skip(5000) == 0  # the next token ends the request


def test_idle_engine_reports_empty_steps_as_the_recorded_one() -> None:
    for asynchronous, empty in ((True, 2), (False, 1)):
        steps = simulate(SchedulerConfig(100, asynchronous=asynchronous), [(32, 1)], 1)
        assert [step.unpadded_tokens for step in steps] == [32] + [None] * empty
        assert steps[-1].padded_tokens is None
        assert steps[-1].generated_tokens is None


def test_default_capture_sizes() -> None:
    sizes = default_capture_sizes()
    assert len(sizes) == 51
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert sizes[-1] == 512
    assert default_capture_sizes(max_capture=64)[-2:] == (56, 64)
    assert len(default_capture_sizes(max_capture=64)) == 11


@pytest.mark.parametrize(
    ("tokens", "uniform", "expected"),
    [
        (3, True, (4, "FULL")),
        (33, True, (40, "FULL")),
        (257, True, (272, "FULL")),
        (7, False, (8, "PIECEWISE")),
        (512, False, (512, "PIECEWISE")),
        (513, True, (513, "NONE")),
        (1055, False, (1055, "NONE")),
    ],
)
def test_padding(tokens: int, uniform: bool, expected: tuple[int, str]) -> None:
    assert SchedulerConfig(10, capture_sizes=default_capture_sizes()).padded(tokens, uniform) == expected


def test_padding_in_other_graph_modes() -> None:
    sizes = default_capture_sizes()
    decode_only = SchedulerConfig(10, capture_sizes=sizes, graph_mode="FULL_DECODE_ONLY")
    assert decode_only.padded(5, True) == (8, "FULL")
    assert decode_only.padded(100, False) == (100, "NONE")
    assert SchedulerConfig(10, capture_sizes=sizes, max_num_seqs=256).padded(300, True) == (304, "PIECEWISE")
    assert SchedulerConfig(10).padded(5, True) == (5, "NONE")


def test_an_aborted_request_gives_its_blocks_back() -> None:
    scheduler = Scheduler(SchedulerConfig(20, max_model_len=256))
    for name in ("running", "waiting"):
        scheduler.add(name, 200, 50)
    step = scheduler.step()
    assert step is not None
    assert (step.running, step.waiting) == (1, 1)
    scheduler.abort("running")
    scheduler.abort("never seen")
    emitted = []
    while (step := scheduler.step()) is not None:
        emitted += step.emitted
    assert emitted == ["waiting"] * 50
    assert scheduler.kv_usage == 0


def test_output_ends_with_the_context() -> None:
    steps = simulate(SchedulerConfig(100, max_model_len=40), [(32, 100)], 1)
    assert sum(len(step.emitted) for step in steps) == 8


@pytest.mark.parametrize(
    ("prompt", "output", "message"),
    [(0, 5, "at least 1"), (64, 5, "max_model_len"), (40, 10, "needs 4 blocks; the pool has 3")],
)
def test_requests_that_could_never_run_are_refused(prompt: int, output: int, message: str) -> None:
    scheduler = Scheduler(SchedulerConfig(4, max_model_len=64))
    with pytest.raises(SchedulingError, match=message):
        scheduler.add("r", prompt, output)


def test_bad_configurations_are_refused() -> None:
    with pytest.raises(SchedulingError, match="num_gpu_blocks is 0"):
        SchedulerConfig(0)
    with pytest.raises(SchedulingError, match="ascending"):
        SchedulerConfig(10, capture_sizes=(8, 4))
    with pytest.raises(SchedulingError, match="concurrency is 0"):
        simulate(SchedulerConfig(10), [(1, 1)], 0)
    scheduler = Scheduler(SchedulerConfig(10))
    scheduler.add("a", 1, 1)
    with pytest.raises(SchedulingError, match="in use"):
        scheduler.add("a", 1, 1)
