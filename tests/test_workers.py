"""One worker a GPU: who does what, on which CPUs; one results folder; stopped together, gone with their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner import nvml, workers
from runner.config import load_config, parse_config
from runner.errors import PreflightError, StoreError
from runner.plan import build_plan, worker_of
from runner.processes import marked
from runner.store import Store, read_header, read_records
from runner.workers import GpuOptions
from tests.fake_nvml import FakeNvml
from tests.make_config import toml

ROOT = Path(__file__).parent.parent
CONFIG = parse_config(toml(("repetitions = 1", "repetitions = 2")), Path("campaign.toml"))
VLLM = load_config(ROOT / "campaign.toml")
TWO_CPUS = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "pynvml", FakeNvml(2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def uuids(*options: Any) -> list[str]:
    return [gpu.identity().uuid for gpu in GpuOptions(*options).open(VLLM)]


# -- who does what


@pytest.mark.usefixtures("two_gpus")
def test_every_gpu_is_used_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert uuids(None, None) == ["GPU-0000-0", "GPU-0000-1"]
    assert uuids(None, 1) == ["GPU-0000-0"]
    assert uuids("1", None) == ["GPU-0000-1"]
    assert GpuOptions(no_gpu=True).open(VLLM) == GpuOptions().open(CONFIG) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert uuids(None, None) == ["GPU-0000-1"]
    with pytest.raises(PreflightError, match="--gpu 7: this engine uses no GPU"):
        GpuOptions("7").open(CONFIG)


@pytest.mark.usefixtures("two_gpus")
def test_more_workers_than_gpus_and_gpus_of_two_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ((None, 3), ("0", 2)):
        with pytest.raises(PreflightError, match="to use"):
            GpuOptions(*options).open(VLLM)
    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetName", lambda _, handle: f"card {handle}", raising=False)
    with pytest.raises(PreflightError, match="not of one kind: card 0, card 1") as caught:
        GpuOptions().open(VLLM)
    assert "--workers 1" in caught.value.hint
    assert len(GpuOptions(workers=1).open(VLLM)) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_blocks_are_whole_each_has_one_worker_and_a_cell_visits_every_gpu(count: int) -> None:
    plan = build_plan(VLLM, ["published"])
    of = worker_of(plan, count)
    assert of.keys() == {block.block_id for block in plan.blocks}
    assert set(of.values()) == set(range(1, count + 1))
    for cell in {(block.model, block.profile) for block in plan.blocks}:
        here = Counter(of[b.block_id] for b in plan.blocks if (b.model, b.profile) == cell)
        assert len(here) == min(count, sum(here.values()))
        assert max(here.values()) - min(here.values()) <= 1


def test_a_core_is_not_split_between_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "TOPOLOGY", str(tmp_path / "{}"))
    for cpu in range(8):  # four cores, the second threads numbered after the first
        (tmp_path / str(cpu)).write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    eight = frozenset(range(8))
    assert workers.split_cpus(eight, 2) == [frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7})]
    assert workers.split_cpus(eight, 1) == [eight]
    assert sorted(map(len, workers.split_cpus(eight, 3))) == [2, 2, 4]
    assert workers.split_cpus(frozenset({0, 4}), 2) == [frozenset({0}), frozenset({4})]
    with pytest.raises(PreflightError, match="3 workers for 2 CPUs"):
        workers.split_cpus(frozenset({0, 4}), 3)


@pytest.mark.usefixtures("two_gpus")
def test_a_worker_gets_its_gpu_its_cpus_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["campaign", "run", "--suite", "mechanism", "--workers", "2"])
    parts = [frozenset({0, 2}), frozenset({1, 3})]
    lines = workers.command_lines(GpuOptions(workers=2).open(VLLM), parts, 7, 90.4)
    assert list(lines) == ["gpu 0", "gpu 1"]
    own = lines["gpu 1"]
    assert own[:8] == [sys.executable, "-m", "runner", "run", "--suite", "mechanism", "--workers", "2"]
    assert " ".join(own[8:]) == "--workers 1 --worker 2/2 --lock 7 --cpus 1,3 --gpu GPU-0000-1 --time-budget 90s"
    assert "--time-budget" not in workers.command_lines([], parts, 7, None)["worker 1"]


# -- waiting for them


def play(tmp_path: Path, *codes: str) -> Any:
    plan = build_plan(CONFIG, ["published"])
    lines = {f"gpu {number}": [sys.executable, "-c", code] for number, code in enumerate(codes)}
    with Store.open(tmp_path / "results", CONFIG) as store:
        return workers.run_workers(plan, store, lines)


@pytest.mark.parametrize(
    ("statuses", "worst"), [((0, 4), 4), ((4, 3), 3), ((3, 2), 2), ((0, 1), 1), ((0, 0), 0), ((-9, 3), 1)]
)
def test_the_worst_status_counts(tmp_path: Path, statuses: tuple[int, ...], worst: int) -> None:
    codes = [f"import os, sys; os.kill(os.getpid(), {-s}) if {s} < 0 else sys.exit({s})" for s in statuses]
    summary = play(tmp_path, *codes)
    assert summary.exit_code == worst
    assert summary.runs_left == 4
    assert ("ended with status" in summary.message) == (worst != 0)


def test_lines_of_a_worker_carry_its_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    play(tmp_path, "print('one')", "import sys; print('two', file=sys.stderr)")
    assert sorted(capfd.readouterr().err.splitlines()) == ["gpu 0 | one", "gpu 1 | two"]


def test_a_worker_goes_on_when_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        summary = play(tmp_path, "print('x' * 70000, flush=True); print('y' * 70000)")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            closed.close()
    assert summary.exit_code == 0


def test_a_worker_that_outlives_its_parent_still_holds_the_folder(tmp_path: Path) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        worker = subprocess.Popen(["sleep", "60"], pass_fds=[store.lock])
    with pytest.raises(StoreError, match="in use by another campaign"):
        Store.open(tmp_path, CONFIG)
    worker.kill()
    worker.wait()
    Store.open(tmp_path, CONFIG).__exit__()


# -- whole campaigns, on the stand-in engine: two workers, no GPU


def start(tmp_path: Path, *options: str, speed: int = 200, fault: str = "") -> subprocess.Popen[str]:
    config = tmp_path / "campaign.toml"
    config.write_text(toml(("repetitions = 1", "repetitions = 2"), ("max_model", "retries = 0\nmax_model")))
    words = ["--config", config, "--results", tmp_path / "results", "--cache", tmp_path / "cache", *options]
    return subprocess.Popen(
        [sys.executable, "-m", "runner", "run", *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"CAMPAIGN_STANDIN_SPEED": str(speed), "CAMPAIGN_STANDIN_FAULT": fault},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    return output


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def both_at_work(tmp_path: Path) -> bool:
    return len(list(tmp_path.glob("results/runs/*.partial/steps.csv"))) == 2


def engines(tmp_path: Path) -> list[Any]:
    return marked(str(read_header(tmp_path / "results")["store_id"]))


@TWO_CPUS
def test_two_workers_fill_one_folder_and_one_goes_on_with_it(tmp_path: Path) -> None:
    first = start(tmp_path, "--workers", "2", "--report", str(tmp_path / "out"))
    said = ended(first)
    assert first.returncode == 0, said
    assert "4 runs valid, 0 attempts failed, 0 runs left: every block of the plan is complete" in said
    assert "--workers 1 uses one GPU alone" in said
    assert {line.split(" | ")[0] for line in said.splitlines() if " | " in line} == {"worker 1", "worker 2"}
    assert (tmp_path / "out/report.SIMULATED.html").is_file()
    assert "next: " not in said
    records, unreadable = read_records(tmp_path / "results")
    assert unreadable == []
    runs = [r for r in records if r.kind == "run"]
    sittings = {r.block_id: {x.sitting_id for x in runs if x.block_id == r.block_id} for r in runs}
    assert [len(found) for found in sittings.values()] == [1, 1]  # no block was split
    assert sittings["7b.small.r1"] != sittings["7b.small.r2"]
    assert [r.folder for r in records if r.kind == "prime"] == ["7b.eager.prime.p1a1", "7b.graphs.prime.p1a1"]
    again = start(tmp_path, "--workers", "1")
    last = ended(again).splitlines()[-2:]
    assert last[0] == "4 runs valid, 0 attempts failed, 0 runs left: every block of the plan is complete"
    assert last[1] == f"next: `campaign report {tmp_path / 'results'}` loads it and reports on it"
    assert again.returncode == 0


@TWO_CPUS
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_of_them_and_the_rest_can_be_done_later(tmp_path: Path, signum: signal.Signals) -> None:
    ended(start(tmp_path, "--primes-only"))
    first = start(tmp_path, "--workers", "2", speed=5)
    until(lambda: both_at_work(tmp_path))
    first.send_signal(signum)
    said = ended(first)
    assert first.returncode == 128 + signum, said
    assert f"stopped by {signum.name}; start again to go on" in said.splitlines()[-1]
    assert engines(tmp_path) == []
    again = start(tmp_path, "--workers", "2")
    assert "4 runs valid" in ended(again)
    assert again.returncode == 0


@TWO_CPUS
def test_killed_the_parent_takes_its_workers_along_and_nobody_comes_between(tmp_path: Path) -> None:
    ended(start(tmp_path, "--primes-only"))
    first = start(tmp_path, "--workers", "2", speed=5)
    until(lambda: both_at_work(tmp_path))
    first.kill()
    first.wait()
    at_once = start(tmp_path, "--workers", "2")
    if "is in use by another campaign" in ended(at_once):  # a worker still held the folder
        assert at_once.returncode == 2
    until(lambda: engines(tmp_path) == [])
    last = start(tmp_path, "--workers", "2")
    until(lambda: last.poll() is not None)
    if last.returncode == 2:
        last = start(tmp_path, "--workers", "2")
    assert "every block of the plan is complete" in ended(last)
    assert last.returncode == 0


@TWO_CPUS
def test_an_arm_that_cannot_start_costs_its_blocks_once(tmp_path: Path) -> None:
    process = start(tmp_path, "--workers", "2", fault="crash_at_load")
    said = ended(process)
    assert process.returncode == 3, said
    assert said.count("out_of_memory") == 2, "each arm's first start is tried by the parent alone"
    assert "worker 2 | " in said
    assert "skipped, the first start" in said
