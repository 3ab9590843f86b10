"""The campaign's loop with runs that end as a script says: order, retries, resume, budget, stop."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analysis.formats.failure import FAILURES
from analysis.formats.run_record import EngineIdentity, Reason, RunRecord, Timeline, parse_run_record
from analysis.gate import Gate
from analysis.gates import GATES
from runner import nvml
from runner.campaign import EXIT_OK, EXIT_OUT_OF_TIME, EXIT_SOME_FAILED, Campaign, StopFlag, Summary
from runner.cli import main
from runner.config import Config, load_config
from runner.config_checks import BLOCKS_FLAG, flag_values
from runner.context import RunContext
from runner.display import Display
from runner.errors import ConfigError, PreflightError, StoreError
from runner.launcher import EngineHost
from runner.nvml import Gpu, open_gpu
from runner.plan import build_plan
from runner.status import render_status
from runner.store import Store, read_records
from runner.watch import Stopped
from tests.fake_nvml import FakeNvml
from tests.make_config import toml

TOML = toml(
    ("repetitions = 1", "repetitions = 2"),
    ("memory_budget_gib = 72.8", "gpu_memory_utilization = 0.9\nretries = 1\npin_kv_blocks = true"),
    ("[arm.graphs]", "[model.estimate]\nstart_s = 10\ncold_start_s = 20\nwindow_s = { sustained = 30 }\n[arm.graphs]"),
    (
        "[profile.small]\nprompts = 40\nconcurrency = 8",
        '[arm.graphs_kv_matched]\nflags = ["--num-gpu-blocks-override={eager.num_gpu_blocks}"]\n'
        "[profile.sustained]\nprompts = 8\nconcurrency = 4",
    ),
    ('"graphs", "eager"]', '"graphs", "eager", "graphs_kv_matched"]'),
    ('["small"]', '["sustained"]'),
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "campaign.toml"
    path.write_text(TOML)
    return load_config(path)


class Script:
    """Stands in for `execute_run`: writes run.json, answers as told by `verdicts[folder]` (default valid)."""

    def __init__(
        self, verdicts: dict[str, str] | None = None, before: Callable[[RunContext], None] | None = None
    ) -> None:
        self.verdicts, self.before = verdicts or {}, before
        self.folders: list[str] = []
        self.flags: dict[str, tuple[str, ...]] = {}
        self.failure_class = "engine_died"
        self.server_log: dict[str, Any] = {}
        self.reasons: tuple[Reason, ...] = ()  # of an invalid run
        self.natural = {"graphs": 100, "eager": 110}
        self.changes: dict[str, dict[str, Any]] = {}  # of a folder's record

    def __call__(self, context: RunContext) -> RunRecord:
        self.folders.append(context.identity.folder)
        self.flags[context.identity.folder] = context.arm_flags
        if self.before:
            self.before(context)
        status = self.verdicts.get(context.identity.folder, "valid")
        natural = self.natural.get(context.identity.arm)
        given = flag_values(context.arm_flags, BLOCKS_FLAG)
        load = context.profile.model_dump(exclude={"prompts", "request_rate"}) if context.profile else {}
        record = RunRecord(
            **context.identity.model_dump(),
            gpu=context.gpu.identity() if context.gpu else None,
            engine=EngineIdentity(kind="stand-in", simulated=True),
            weights="dummy",
            wall_start=f"2026-01-01T00:00:{len(self.folders):02d}+00:00",
            status=status,
            timeline=Timeline(run_begin_ns=0, run_end_ns=10**9),
            failure_class=self.failure_class if status == "failed" else None,
            num_gpu_blocks=int(given[0]) if given else natural,
            num_gpu_blocks_natural=natural,
            num_prompts=context.profile.prompts if context.profile else None,
            **load,
            serve_argv=(f"models/{context.model.directory}", *context.arm_flags),
            server_log=self.server_log,
            reasons=self.reasons if status == "invalid" else (),
        ).model_copy(update=self.changes.get(context.identity.folder, {}))
        (context.directory / "run.json").write_text(record.model_dump_json())
        return record


FOLDERS = [f"7b.{arm}.prime.p1a1" for arm in ("graphs", "eager")] + [
    f"7b.{arm}.sustained.r{n}.p1a1" for arm in ("graphs", "eager", "graphs_kv_matched") for n in (1, 2)
]


def sit(
    config: Config,
    tmp_path: Path,
    script: Script,
    *,
    gpu: Gpu | None = None,
    display: Display | None = None,
    **options: Any,
) -> Summary:
    host = EngineHost(python="python3", path=(), models=tmp_path, cache=tmp_path / "cache", kind="stand-in")
    plan = build_plan(config, ["published"])
    with Store.open(tmp_path / "results", config) as store:
        display = display or Display(io.StringIO())
        return Campaign(config, plan, store, host, gpu, display, execute=script, **options).run()


def test_primes_come_first_and_set_the_block_counts(config: Config, tmp_path: Path) -> None:
    script = Script()
    assert sit(config, tmp_path, script).exit_code == EXIT_OK
    assert sorted(script.folders[:2]) == ["7b.eager.prime.p1a1", "7b.graphs.prime.p1a1"]
    assert len(script.folders) == 2 + 6
    assert len({f.split(".p1a")[0] for f in script.folders}) == 8
    assert script.flags["7b.graphs.sustained.r1.p1a1"] == ("--num-gpu-blocks-override", "100")
    assert script.flags["7b.graphs_kv_matched.sustained.r1.p1a1"] == ("--num-gpu-blocks-override=110",)
    assert script.flags["7b.eager.prime.p1a1"] == ("--enforce-eager",)


def test_arm_order_within_blocks_follows_the_seed(config: Config, tmp_path: Path) -> None:
    first, second = Script(), Script()
    sit(config, tmp_path / "a", first)
    sit(config, tmp_path / "b", second)
    assert first.folders == second.folders
    plan = build_plan(config, ["published"])
    runs = [f for f in first.folders if "prime" not in f]
    assert runs == [f"{r.run_id}.p1a1" for b in plan.blocks for r in b.runs()]


def test_finished_campaign_does_nothing_more(config: Config, tmp_path: Path) -> None:
    sit(config, tmp_path, Script())
    again = Script()
    assert sit(config, tmp_path, again).exit_code == EXIT_OK
    assert again.folders == []


def test_failed_run_is_retried_and_then_given_up(config: Config, tmp_path: Path) -> None:
    once = Script({"7b.eager.sustained.r1.p1a1": "failed"})
    assert sit(config, tmp_path / "once", once).exit_code == EXIT_OK
    assert "7b.eager.sustained.r1.p1a2" in once.folders
    always = Script({f"7b.eager.sustained.r1.p1a{n}": "invalid" for n in (1, 2, 3, 4)})
    summary = sit(config, tmp_path / "always", always)
    assert (summary.exit_code, summary.runs_failed, summary.runs_left) == (EXIT_SOME_FAILED, 2, 1)
    assert "7b.sustained.r1" in summary.message
    assert sit(config, tmp_path / "always", always).exit_code == EXIT_SOME_FAILED  # attempts 3 and 4
    assert sit(config, tmp_path / "always", Script()).exit_code == EXIT_OK


def test_failed_prime_skips_the_block_but_loses_nothing(config: Config, tmp_path: Path) -> None:
    script = Script({f"7b.eager.prime.p{n}a1": "failed" for n in (1, 2)})
    summary = sit(config, tmp_path, script)
    assert summary.exit_code == EXIT_SOME_FAILED
    assert not [f for f in script.folders if "sustained" in f]
    assert sit(config, tmp_path, Script()).exit_code == EXIT_OK


def test_machine_failure_ends_the_campaign_at_once(config: Config, tmp_path: Path) -> None:
    script = Script({"7b.eager.sustained.r1.p1a1": "failed"})
    script.failure_class = "gpu_memory_not_freed"
    with pytest.raises(PreflightError, match=r"7b\.eager\.sustained\.r1"):
        sit(config, tmp_path, script)
    assert script.folders[-1] == "7b.eager.sustained.r1.p1a1"
    assert sit(config, tmp_path, Script()).exit_code == EXIT_OK


@pytest.mark.parametrize("name", FAILURES)
def test_only_what_a_retry_can_mend_is_tried_again(config: Config, tmp_path: Path, name: str) -> None:
    folder = "7b.eager.sustained.r1.p1a"
    script = Script({f"{folder}{n}": "failed" for n in (1, 2)})
    script.failure_class = name
    if FAILURES[name].then == "stop":
        with pytest.raises(PreflightError, match=r"7b\.eager\.sustained\.r1\.p1a1"):
            sit(config, tmp_path, script)
    else:
        assert sit(config, tmp_path, script).exit_code == EXIT_SOME_FAILED
        assert [f for f in script.folders if f.startswith("7b.graphs.sustained.r2")], "the others go on"
    tries = {"retry": 2, "give_up": 1, "stop": 1}[FAILURES[name].then]
    assert len([f for f in script.folders if f.startswith(folder)]) == tries
    assert sit(config, tmp_path, Script()).exit_code == EXIT_OK


@pytest.mark.parametrize("gate", [gate for gate in GATES if gate.severity == "invalid"], ids=lambda gate: gate.code)
def test_a_gate_that_would_fire_again_is_not_tried_again(config: Config, tmp_path: Path, gate: Gate) -> None:
    script = Script({f"7b.eager.sustained.r1.p1a{n}": "invalid" for n in (1, 2)})
    script.reasons = (Reason(code=gate.code, severity="invalid", evidence="x", advice="y"),)
    assert sit(config, tmp_path, script).exit_code == EXIT_SOME_FAILED
    tries = [f for f in script.folders if f.startswith("7b.eager.sustained.r1")]
    assert len(tries) == (1 if gate.then == "give_up" else 2)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """An H100, of which 7.9 GiB are outside the memory budget of the configuration."""
    monkeypatch.setattr(nvml, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return open_gpu()


def with_memory(available_kv_gib: float, actual_graph_gib: float) -> Script:
    """graphs has 100 blocks in `available_kv_gib` by nature and is given 110."""
    script = Script()
    script.server_log = {"available_kv_gib": available_kv_gib, "estimated_graph_gib": 1.0}
    script.server_log["graph_pool_actual_gib"] = actual_graph_gib
    return script


def test_blocks_that_fit_outside_the_budget_are_run(config: Config, tmp_path: Path, gpu: Gpu) -> None:
    assert sit(config, tmp_path, with_memory(50.0, 3.0), gpu=gpu).exit_code == EXIT_OK  # 5 + 2 GiB


@pytest.mark.parametrize(("available_kv_gib", "actual_graph_gib"), [(100.0, 3.0), (50.0, 6.0)])
def test_blocks_that_do_not_fit_outside_the_budget_are_refused_before_the_run(
    config: Config, tmp_path: Path, gpu: Gpu, available_kv_gib: float, actual_graph_gib: float
) -> None:
    script = with_memory(available_kv_gib, actual_graph_gib)
    with pytest.raises(PreflightError, match=r"7b\.graphs: 110 KV blocks are more than the 100 that fit"):
        sit(config, tmp_path, script, gpu=gpu)
    assert not any("kv_matched" in folder for folder in script.folders)
    assert sit(config, tmp_path / "without-gpu", script).exit_code == EXIT_OK


# -- gates on several runs


def without_pin(config: Config) -> Config:
    config.path.write_text(TOML.replace("pin_kv_blocks = true", ""))
    return load_config(config.path)


def told(results: Path, folder: str) -> list[str]:
    """The reasons in a folder's run.json."""
    return [r.code for r in parse_run_record((results / "runs" / folder / "run.json").read_bytes(), folder).reasons]


def test_a_run_with_another_command_than_its_arm_s_is_not_counted(config: Config, tmp_path: Path) -> None:
    script, folder = Script(), "7b.eager.sustained.r1.p1a1"
    script.changes[folder] = {"serve_argv": ("models/m", "--num-gpu-blocks-override", "110")}  # no --enforce-eager
    summary = sit(config, tmp_path, script)
    assert (summary.exit_code, summary.runs_left) == (EXIT_SOME_FAILED, 1)
    assert not [f for f in script.folders if f.endswith("eager.sustained.r1.p1a2")], "it would end the same way"
    assert told(tmp_path / "results", folder) == ["not_as_configured"]
    assert sit(config, tmp_path, Script()).exit_code == EXIT_OK


def test_an_arm_that_is_not_kv_matched_is_not_counted(config: Config, tmp_path: Path) -> None:
    """The eager run finds another number of blocks than its first start did, whichever of the two arms runs first."""
    config, script = without_pin(config), Script()
    for number in (1, 2):
        script.changes[f"7b.eager.sustained.r{number}.p1a1"] = {"num_gpu_blocks": 108}
    summary = sit(config, tmp_path, script)
    assert (summary.exit_code, summary.runs_left) == (EXIT_SOME_FAILED, 2)
    assert "7b.sustained.r1, 7b.sustained.r2" in summary.message
    assert not [f for f in script.folders if f.endswith("a2")]
    verdicts = {r.folder: [x.code for x in r.reasons] for r in settled(config, tmp_path)}
    matched = {f"7b.graphs_kv_matched.sustained.r{n}.p1a1": ["kv_not_matched"] for n in (1, 2)}
    assert {folder: codes for folder, codes in verdicts.items() if codes} == matched


def settled(config: Config, tmp_path: Path) -> list[RunRecord]:
    """The records as a further sitting finds them, which starts nothing."""
    host = EngineHost(python="python3", path=(), models=tmp_path, cache=tmp_path / "cache", kind="stand-in")
    plan = build_plan(config, ["published"])
    with Store.open(tmp_path / "results", config) as store:
        sitting = Campaign(config, plan, store, host, None, Display(io.StringIO()), execute=Script(), time_budget_s=0.0)
        assert sitting.run().exit_code == EXIT_OUT_OF_TIME
        return sitting.records


def test_another_number_of_pinned_blocks_than_in_earlier_blocks_ends_the_campaign(
    config: Config, tmp_path: Path
) -> None:
    def interrupt(context: RunContext) -> None:
        if context.identity.repetition == 2:
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreError):
        sit(config, tmp_path, Script(before=interrupt))
    for prime in (tmp_path / "results/primes").iterdir():
        shutil.rmtree(prime)
    script = Script()
    script.natural = {"graphs": 99, "eager": 110}  # as the first start finds it now
    with pytest.raises(
        PreflightError, match=r"7b\.graphs\.sustained\.r2\.p1a1: pinned_kv_blocks_differ: 99 blocks, 7b.*100"
    ):
        sit(config, tmp_path, script)
    assert told(tmp_path / "results", "7b.graphs.sustained.r2.p1a1") == ["pinned_kv_blocks_differ"]


def test_a_block_that_was_finished_on_another_gpu_is_run_again_as_a_whole(
    config: Config, tmp_path: Path, gpu: Gpu
) -> None:
    script = with_memory(50.0, 3.0)
    other = gpu.identity().model_copy(update={"uuid": "GPU-other"})
    script.changes["7b.eager.sustained.r1.p1a1"] = {"gpu": other}
    summary = sit(config, tmp_path, script, gpu=gpu)
    assert summary.exit_code == EXIT_OK
    again = {f for f in script.folders if ".r1.p2" in f}
    assert again == {f"7b.{arm}.sustained.r1.p2a1" for arm in ("graphs", "eager", "graphs_kv_matched")}
    assert not [f for f in script.folders if ".r2.p2" in f]


def test_a_gpu_that_changes_in_every_block_is_given_up(config: Config, tmp_path: Path, gpu: Gpu) -> None:
    script = with_memory(50.0, 3.0)
    other = gpu.identity().model_copy(update={"uuid": "GPU-other"})
    script.changes |= {f"7b.eager.sustained.r1.p{n}a1": {"gpu": other} for n in (1, 2)}
    summary = sit(config, tmp_path, script, gpu=gpu)
    assert (summary.exit_code, summary.runs_left) == (EXIT_SOME_FAILED, 3)
    assert not [f for f in script.folders if ".r1.p3" in f]


def test_a_run_put_under_another_name_between_sittings_is_run_again(config: Config, tmp_path: Path) -> None:
    sit(config, tmp_path, Script())
    folder, runs = "7b.eager.sustained.r1.p1a1", tmp_path / "results/runs"
    record = json.loads((runs / folder / "run.json").read_text())
    graphs = json.loads((runs / folder.replace("eager", "graphs") / "run.json").read_text())
    (runs / folder / "run.json").write_text(json.dumps(record | {"serve_argv": graphs["serve_argv"]}))
    script = Script()
    assert sit(config, tmp_path, script).exit_code == EXIT_OK
    assert script.folders == ["7b.eager.sustained.r1.p1a2"]


def test_copies_of_a_folder_do_not_share_their_process_mark(config: Config, tmp_path: Path) -> None:
    with Store.open(tmp_path / "a", config) as first:
        mark = first.process_mark
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with Store.open(tmp_path / "b", config) as second:
        assert second.process_mark != mark


def test_time_budget_starts_nothing_that_cannot_finish(config: Config, tmp_path: Path) -> None:
    script = Script()
    assert sit(config, tmp_path, script, time_budget_s=30.0).exit_code == EXIT_OUT_OF_TIME
    assert script.folders == []


def test_primes_only_fills_the_caches_once(config: Config, tmp_path: Path) -> None:
    script = Script()
    assert sit(config, tmp_path, script, primes_only=True, time_budget_s=1000.0).exit_code == EXIT_OK
    assert sorted(script.folders) == ["7b.eager.prime.p1a1", "7b.graphs.prime.p1a1"]
    again = Script()
    assert sit(config, tmp_path, again, primes_only=True, time_budget_s=1.0).exit_code == EXIT_OK
    assert again.folders == []
    short = Script()
    assert sit(config, tmp_path / "short", short, primes_only=True, time_budget_s=1.0).exit_code == EXIT_OUT_OF_TIME
    assert short.folders == []


def test_stop_leaves_the_store_resumable(config: Config, tmp_path: Path) -> None:
    stop = StopFlag()

    def interrupt(context: RunContext) -> None:
        if context.identity.folder == "7b.eager.sustained.r1.p1a1":
            stop.signum = signal.SIGTERM
            stop.event.set()
            raise Stopped

    summary = sit(config, tmp_path, Script(before=interrupt), stop=stop)
    assert summary.exit_code == 128 + signal.SIGTERM
    assert list((tmp_path / "results/runs").glob("*.partial"))
    assert sit(config, tmp_path, Script()).exit_code == EXIT_OK
    assert not list((tmp_path / "results/runs").glob("*.partial"))
    assert len(list((tmp_path / "results/aborted").iterdir())) == 1


def test_full_disk_names_the_run_and_keeps_the_finished_ones(config: Config, tmp_path: Path) -> None:
    def full(context: RunContext) -> None:
        if context.identity.folder == "7b.eager.sustained.r2.p1a1":
            raise OSError(28, "No space left on device", "steps.parquet")

    with pytest.raises(StoreError, match=r"7b\.eager\.sustained\.r2\.p1a1: No space left on device \(steps\.parquet\)"):
        sit(config, tmp_path, Script(before=full))
    done = len(read_records(tmp_path / "results")[0])
    assert done >= 5
    rest = Script()
    assert sit(config, tmp_path, rest).exit_code == EXIT_OK
    assert len(rest.folders) == 8 - done


def test_changed_configuration_is_refused(config: Config, tmp_path: Path) -> None:
    sit(config, tmp_path, Script())
    config.path.write_text(TOML.replace("prompts = 8", "prompts = 9"))
    with pytest.raises(ConfigError, match=r"profile.*prompts"):
        sit(load_config(config.path), tmp_path, Script())
    plan = build_plan(config, ["published"])
    assert "warning" not in render_status(tmp_path / "results", plan, config)[0]
    said = render_status(tmp_path / "results", plan, load_config(config.path))[0]
    assert said.startswith(f"warning: begun with another configuration (--config {tmp_path / 'results/campaign.toml'})")
    assert "`run` will not go on: profiles.sustained.prompts changed" in said


def test_status_forgives_what_is_an_option_of_the_run(config: Config, tmp_path: Path) -> None:
    sit(config, tmp_path, Script())
    engine = config.engine.model_copy(update={"launcher": "container", "image": "x"})
    other = config.model_copy(update={"engine": engine})
    assert "warning" not in render_status(tmp_path / "results", build_plan(other, ["published"]), other)[0]


def test_more_repetitions_are_accepted_and_added(config: Config, tmp_path: Path) -> None:
    sit(config, tmp_path, Script())
    config.path.write_text(TOML.replace("repetitions = 2", "repetitions = 3"))
    script = Script()
    sit(load_config(config.path), tmp_path, script)
    assert {f.split(".")[3] for f in script.folders} == {"r3"}


def test_two_campaigns_on_one_folder_are_refused(config: Config, tmp_path: Path) -> None:
    with Store.open(tmp_path / "results", config), pytest.raises(StoreError, match="in use by another campaign"):
        Store.open(tmp_path / "results", config)


def test_half_written_record_counts_as_not_run(config: Config, tmp_path: Path) -> None:
    sit(config, tmp_path, Script())
    victim = tmp_path / "results/runs/7b.graphs.sustained.r1.p1a1/run.json"
    victim.write_text(victim.read_text()[:100])
    script = Script()
    assert sit(config, tmp_path, script).exit_code == EXIT_OK
    assert script.folders == ["7b.graphs.sustained.r1.p1a1"]


@pytest.mark.parametrize("change", ["edited", "deleted", "added"])
def test_a_run_whose_files_were_changed_is_neither_counted_nor_run_over(
    config: Config, tmp_path: Path, change: str
) -> None:
    script = Script(before=lambda context: (context.directory / "bench.json").write_text("{}") and None)
    digest = hashlib.sha256(b"{}").hexdigest()
    script.changes = {f: {"files_sha256": {"bench.json": digest}} for f in FOLDERS}
    sit(config, tmp_path, script)
    results, plan = tmp_path / "results", build_plan(config, ["published"])
    assert "2 of 2 blocks of suite published done" in render_status(results, plan, config)[0]
    folder = results / "runs/7b.graphs.sustained.r1.p1a1"
    if change == "edited":
        (folder / "bench.json").write_text("{ }")
    elif change == "deleted":
        (folder / "bench.json").unlink()
    else:
        (folder / "notes.txt").write_text("")
    again = Script()
    with pytest.raises(StoreError, match=r"r1\.p1a1: (bench\.json|notes\.txt) (was|is|came)") as caught:
        sit(config, tmp_path, again)
    assert "remove it, then start the campaign again" in caught.value.hint
    assert again.folders == []
    said = render_status(results, plan, config)[0]
    assert "partial  7b.sustained.r1 (2/3 runs; missing: graphs)" in said
    assert f"{folder}: " in said
    assert "1 of 2 blocks of suite published done" in said
    shutil.rmtree(folder)
    assert sit(config, tmp_path, again).exit_code == EXIT_OK
    assert again.folders == [folder.name]


def test_a_folder_that_goes_to_aborted_is_told_for_what_it_is(config: Config, tmp_path: Path) -> None:
    said, runs = io.StringIO(), tmp_path / "results/runs"
    sit(config, tmp_path, Script())
    copy = "7b.graphs.sustained.r3.p1a1"
    shutil.copytree(runs / copy.replace("r3", "r1"), runs / copy)
    (runs / "7b.graphs.sustained.r4.p1a1.partial").mkdir()
    sit(config, tmp_path, Script(), display=Display(said))
    half, copied = (line.split("] ", 1)[1] for line in said.getvalue().splitlines())
    assert re.fullmatch(r"half-written folder moved to .*/aborted/7b\S*r4\S*: it counts as not run", half)
    assert copied.startswith(f"{copy} (run.json says folder '{copy.replace('r3', 'r1')}') moved to ")


@pytest.mark.parametrize("status", ["failed", "invalid"])
def test_a_failure_is_told_once_and_where_to_read_why(config: Config, tmp_path: Path, status: str) -> None:
    folder, said = "7b.eager.sustained.r1.p1a1", io.StringIO()
    script = Script({folder: status})
    script.failure_class = "out_of_memory"
    script.reasons = (Reason(code="not_as_configured", severity="invalid", evidence="x", advice="y"),)
    script.changes[folder] = {"failure_message": "CUDA out of memory"} if status == "failed" else {}
    summary = sit(config, tmp_path, script, display=Display(said))
    text, why = said.getvalue(), f"`campaign validate {tmp_path / 'results'}` says why"
    assert text.count("CUDA out of memory") == (status == "failed")
    assert text.count(why) == (status == "invalid")
    assert "not tried again, it would end the same way\n" in text
    assert summary.message.endswith(why)


def test_unwritable_results_folder_is_named(config: Config, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(StoreError, match="Not a directory"):
        Store.open(tmp_path / "results", config)


def test_folder_with_runs_but_without_header_is_refused(config: Config, tmp_path: Path) -> None:
    sit(config, tmp_path, Script())
    (tmp_path / "results/campaign.json").unlink()
    with pytest.raises(StoreError, match=r"no campaign\.json"):
        Store.open(tmp_path / "results", config)


def test_damaged_header_is_refused(config: Config, tmp_path: Path) -> None:
    sit(config, tmp_path, Script())
    header = tmp_path / "results/campaign.json"
    header.write_text(header.read_text()[:50])
    with pytest.raises(StoreError, match="cannot be read"):
        Store.open(tmp_path / "results", config)


def test_counts_of_one_are_in_the_singular(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Campaign, "run", lambda _: Summary(EXIT_SOME_FAILED, 1, 1, 21, "not completed"))
    words = ["run", "--config", str(config.path), "--results", str(tmp_path / "r"), "--cache", str(tmp_path / "c")]
    said = CliRunner().invoke(main, [*words, "--workers", "1"]).stdout.splitlines()
    assert said[0] == "1 run valid, 1 attempt failed, 21 runs left: not completed"
    assert said[1] == f"next: `campaign report {tmp_path / 'r'}` loads it and reports on it"
