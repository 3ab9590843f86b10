"""One small campaign on the real vLLM 0.23.0 (CPU build): launcher, plug-in, server, client, resume, load."""

from __future__ import annotations

import gzip
import json
import subprocess
import time
from pathlib import Path

import duckdb
import psutil
import pytest
from cpu_campaign import CONFIG, VICTIM, Campaign, run_campaign

from analysis.formats.bench import parse_bench
from analysis.formats.metrics import parse_metrics
from analysis.formats.server_log import parse_server_log
from analysis.formats.steps import StepRow
from analysis.gates import Evidence, judge
from analysis.load import load
from runner.bench_client import BenchClient
from runner.config import load_config
from runner.launcher import EngineHost
from runner.processes import free_port
from tests.replay import PROMPT, replay

pytestmark = [pytest.mark.engine, pytest.mark.slow]
CROWDED = ("tiny.eager.crowded.r1.p1a2", "tiny.eager.crowded.r2.p1a1")
CALM = ("tiny.eager.calm.r1.p1a1", "tiny.eager.calm.r2.p1a1")


def text_of(campaign: Campaign, folder: str, name: str) -> str:
    return gzip.decompress((campaign.results / "runs" / folder / name).read_bytes()).decode()


def test_every_block_completes(campaign: Campaign) -> None:
    assert campaign.exit_code == 0, campaign.output
    valid = {r.folder for r in campaign.records if r.status == "valid" and r.kind == "run"}
    assert valid == {*CROWDED, *CALM}, campaign.output
    primes = [r for r in campaign.records if r.kind == "prime"]
    assert [p.status for p in primes] == ["valid"]


def test_an_engine_killed_in_its_load_fails_the_run_and_it_is_tried_again(campaign: Campaign) -> None:
    assert len(campaign.killed) == 1
    victim = campaign.run(VICTIM)
    assert (victim.status, victim.failure_class) == ("failed", "died_in_window"), victim.failure_message
    assert victim.timeline.go_ns is not None
    assert campaign.run(CROWDED[0]).attempt == 2
    assert (campaign.results / "runs" / VICTIM / "server.log.gz").is_file()


def test_no_process_is_left(campaign: Campaign) -> None:
    store_id = json.loads((campaign.results / "campaign.json").read_text())["store_id"]
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CAMPAIGN_RUN", "").startswith(store_id):
                left.append(process.cmdline())
        except psutil.Error:
            continue
    assert left == []


@pytest.mark.parametrize("folder", [*CROWDED, *CALM])
def test_moments_are_in_order_and_all_there(campaign: Campaign, folder: str) -> None:
    t = campaign.run(folder).timeline
    order = [
        t.run_begin_ns, t.exec_ns, t.healthy_ns, t.probe_sent_ns, t.probe_first_token_ns, t.probe_end_ns,
        t.go_ns, t.window_begin_ns, t.window_end_ns, t.bench_exit_ns, t.stop_ns, t.exited_ns, t.run_end_ns,
    ]  # fmt: skip
    present = [moment for moment in order if moment is not None]
    assert len(present) == len(order)
    assert present == sorted(present)
    assert t.bench_ready_ns is not None
    assert t.bench_ready_ns <= present[6]


@pytest.mark.parametrize("folder", CROWDED)
def test_every_step_and_preemption_follows_from_the_scheduling_model(campaign: Campaign, folder: str) -> None:
    """From the arrivals alone. Their number is 10 to 23: it depends on how late each client's next request comes."""
    before, after = (parse_metrics(text_of(campaign, folder, f"metrics_{when}.txt.gz")) for when in ("before", "after"))
    assert after.num_gpu_blocks == 12
    assert before.value("vllm:num_preemptions_total") == 0
    path = campaign.results / "runs" / folder / "steps.parquet"
    rows = [StepRow(*row) for row in duckdb.sql(f"SELECT * FROM read_parquet('{path}') ORDER BY step").fetchall()]
    probed = next(index for index, row in enumerate(rows) if (row.prompt_tokens or 1) % PROMPT == 0)
    assert replay(rows[probed:]) == (0, 16 + 2, after.value("vllm:num_preemptions_total"))  # 2 warm up


def test_blocks_and_log_facts_are_those_of_the_arm(campaign: Campaign) -> None:
    record = campaign.run(CALM[0])
    log = parse_server_log(text_of(campaign, CALM[0], "server.log.gz"))
    assert record.num_gpu_blocks == log.num_gpu_blocks_override == 12
    assert record.num_gpu_blocks_natural == log.num_gpu_blocks_natural
    assert (log.vllm_version, log.enforce_eager, log.application_started) == ("0.23.0", True, True)
    assert record.engine.simulated is False


def test_finished_campaign_does_nothing_when_run_again(campaign: Campaign, engine_python: str, place: Path) -> None:
    begun = time.monotonic()
    again = run_campaign(engine_python, place, "small", "small")
    assert again.exit_code == 0
    assert again.records == campaign.records
    assert time.monotonic() - begun < 30


def test_results_load_into_the_database(campaign: Campaign, tmp_path: Path) -> None:
    load(campaign.results, tmp_path / "results.duckdb")
    with duckdb.connect(str(tmp_path / "results.duckdb"), read_only=True) as db:
        counts = db.sql("SELECT kind, status, count(*) FROM runs GROUP BY ALL ORDER BY ALL").fetchall()
        assert counts == [("prime", "valid", 1), ("run", "failed", 1), ("run", "valid", 4)]
        assert db.sql("SELECT count(*) >= 2 * 16 + 2 * 20 FROM requests").fetchall() == [(True,)]


def test_a_mistyped_flag_fails_with_the_engine_s_own_words(engine_python: str, place: Path) -> None:
    outcome = run_campaign(engine_python, place, "mistyped", "mistyped")
    assert outcome.exit_code == 3, outcome.output
    assert {(r.kind, r.status, r.failure_class) for r in outcome.records} == {("prime", "failed", "bad_flag")}
    assert "--enforce-eagre" in (outcome.records[0].failure_message or "")


def test_a_client_without_a_server_yields_no_valid_run(
    campaign: Campaign, engine_python: str, place: Path, tmp_path: Path
) -> None:
    """The client exits 0 and writes a result file; the gates must not believe it."""
    config = load_config(CONFIG)
    host = EngineHost(engine_python, (), place / "models", place / "cache", "vllm")
    model, profile = config.models["tiny"], config.profiles["calm"]
    result = tmp_path / "bench.json"
    argv = host.bench_argv(config, model, profile, port=free_port(), seed=1, result=result)
    environment, _ = host.environment(config, marker="test:dead-server")
    client = BenchClient("bench client", argv, environment, tmp_path / "bench.log")
    try:
        deadline = time.monotonic() + 120
        while client.ready_ns() is None and client.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        client.go()
        while client.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        status = client.poll()
    finally:
        client.stop(0.0)
    log = (tmp_path / "bench.log").read_text(errors="replace")
    assert result.is_file(), log[-2000:]
    bench = parse_bench(result.read_bytes())
    assert (status, bench.completed, bench.failed) == (0, 0, profile.prompts)
    codes = {r.code for r in judge(Evidence(campaign.run(CALM[0]), bench=bench)) if r.severity == "invalid"}
    assert {"no_successful_requests", "failed_requests"} <= codes


ROUND_TRIP = """
import random, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
assert len(tokenizer) == int(sys.argv[2]) and tokenizer.num_special_tokens_to_add() == 0
for seed in range(20):
    ids = random.Random(seed).choices(range(int(sys.argv[2])), k=1024)
    assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids
"""


@pytest.mark.parametrize(("options", "folder", "tokens"), [(["--tiny"], "tok-tiny", 1024), ([], "tok", 151_646)])
def test_random_ids_come_back_from_their_text(
    engine_python: str, make_models_script: Path, tmp_path: Path, options: list[str], folder: str, tokens: int
) -> None:
    subprocess.run([engine_python, make_models_script, tmp_path, *options], check=True, capture_output=True)
    subprocess.run([engine_python, "-c", ROUND_TRIP, tmp_path / folder, str(tokens)], check=True, timeout=120)
