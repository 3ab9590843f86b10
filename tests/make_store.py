"""Results folders for tests: the recorded real runs, and a synthetic campaign with every edge case."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import duckdb

from analysis.formats.bench import parse_bench
from analysis.formats.metrics import parse_metrics
from analysis.formats.run_record import EngineIdentity, GpuIdentity, Reason, RunRecord, Timeline
from analysis.formats.server_log import parse_server_log
from analysis.formats.steps import StepRow, parse_steps
from tests import recorded

H200 = GpuIdentity(index=0, uuid="GPU-h200", name="NVIDIA H200", memory_total_mib=143771)
START_S = {
    "graphs-sustained-1": 102.0,
    "graphs-sustained-2": 66.0,
    "eager-sustained-1": 54.0,
    "graphs_kv_matched-sustained-1": 70.0,
    "compile_only-sustained-1": 97.0,
}

PARQUET = {
    "requests": "request INTEGER, start_s DOUBLE, ttft_s DOUBLE, latency_s DOUBLE,"
    " input_tokens INTEGER, output_tokens INTEGER, itl_us INTEGER[], error VARCHAR",
    "steps": "step INTEGER, t_ns BIGINT, running INTEGER, waiting INTEGER, kv_usage DOUBLE,"
    " preempted INTEGER, prompt_tokens INTEGER, generated_tokens INTEGER,"
    " unpadded_tokens INTEGER, padded_tokens INTEGER, runtime_mode VARCHAR",
    "telemetry": "t_ns BIGINT, energy_mj BIGINT, power_mw INTEGER, sm_clock_mhz INTEGER,"
    " memory_clock_mhz INTEGER, temperature_c INTEGER, memory_used_mib INTEGER,"
    " gpu_utilisation_pct INTEGER, throttle_reasons BIGINT",
}


_con = duckdb.connect(config={"threads": 1})


def write_parquet(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    columns = list(zip(*rows, strict=True))
    _con.execute(f"CREATE OR REPLACE TEMP TABLE t ({PARQUET[path.stem]})")
    if columns:
        marks = ", ".join("unnest(?)" for _ in columns)
        _con.execute(f"INSERT INTO t SELECT {marks}", [list(c) for c in columns])
    _con.execute(f"COPY t TO '{path}' (FORMAT parquet, COMPRESSION zstd)")


def write_run(
    root: Path, record: RunRecord, files: dict[str, bytes] | None = None, **tables: Iterable[Sequence[Any]]
) -> Path:
    """Write a finished folder; the record gets the files' hashes."""
    folder = root / ("runs" if record.kind == "run" else "primes") / record.folder
    folder.mkdir(parents=True)
    for name, data in (files or {}).items():
        (folder / name).write_bytes(data)
    for name, rows in tables.items():
        write_parquet(folder / f"{name}.parquet", rows)
    hashes = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}
    record = record.model_copy(update={"files_sha256": hashes})
    (folder / "run.json").write_text(record.model_dump_json(indent=1))
    return folder


def write_header(root: Path, name: str = "test", sittings: Sequence[str] = ("s1",), **provenance: Any) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "campaign.json").write_text(
        json.dumps({"schema_version": 1, "store_id": "x", "campaign": name, "configuration": {"seed": 1}})
    )
    for sitting in sittings:
        folder = root / "sittings" / sitting
        folder.mkdir(parents=True)
        (folder / "provenance.json").write_text(json.dumps({"machine": {"host": "node-1"}, **provenance}))
    return root


def timeline(begin_s: float, start_s: float, window: tuple[float, float] | None) -> Timeline:
    """A plausible life: exec 0.5 s after the begin, probe, warm-up, window, stop. Seconds in, ns out."""
    ns = {"run_begin_ns": begin_s, "exec_ns": begin_s + 0.5, "healthy_ns": begin_s + 0.5 + start_s}
    healthy = ns["healthy_ns"]
    ns |= {
        "probe_sent_ns": healthy + 0.01,
        "probe_first_token_ns": healthy + 0.25,
        "probe_end_ns": healthy + 0.5,
        "bench_ready_ns": healthy - 1,
    }
    end = healthy + 0.6
    if window is not None:
        ns |= {
            "go_ns": window[0] - 3,
            "window_begin_ns": window[0],
            "window_end_ns": window[1],
            "bench_exit_ns": window[1] + 0.4,
        }
        end = window[1] + 0.5
    ns |= {"stop_ns": end, "exited_ns": end + 1, "memory_freed_ns": end + 1.2, "run_end_ns": end + 1.5}
    return Timeline(**{key: round(value * 1e9) for key, value in ns.items()})


def make_record(
    arm: str,
    profile: str | None,
    repetition: int | None,
    times: Timeline,
    *,
    model: str = "32b",
    arms: Sequence[str] = (),
    pass_number: int = 1,
    attempt: int = 1,
    simulated: bool = False,
    gpu: GpuIdentity | None = H200,
    **more: Any,
) -> RunRecord:
    run_id = f"{model}.{arm}.prime" if profile is None else f"{model}.{arm}.{profile}.r{repetition}"
    values: dict[str, Any] = {
        "kind": "prime" if profile is None else "run",
        "run_id": run_id,
        "folder": f"{run_id}.p{pass_number}a{attempt}",
        "campaign": "test",
        "model": model,
        "arm": arm,
        "profile": profile,
        "repetition": repetition,
        "block_id": None if profile is None else f"{model}.{profile}.r{repetition}",
        "pass_number": pass_number,
        "attempt": attempt,
        "order_in_block": list(arms).index(arm) if arm in arms else None,
        "block_arms": tuple(arms),
        "seed": repetition,
        "sitting_id": "s1",
        "machine_id": "boot-1",
        "gpu": gpu,
        "weights": "dummy",
        "wall_start": "2026-11-29T17:00:00+00:00",
        "status": "valid",
        "engine": EngineIdentity(kind="stand-in" if simulated else "vllm", version="0.23.0", simulated=simulated),
        "timeline": times,
    }
    return RunRecord(**(values | more))


def recorded_store(root: Path) -> Path:
    """The five recorded runs as a campaign: block r1 with four arms, and r2 cut off after its graphs run."""
    write_header(root, "recorded")
    arms = ("graphs", "eager", "graphs_kv_matched", "compile_only")
    for folder in recorded.GPU_RUNS:
        key = folder.removeprefix("32b-")
        arm, profile, repetition = key.rsplit("-", 2)
        bench = parse_bench(recorded.data(folder, "bench.json"))
        log, metrics = recorded.text(folder, "server.log"), recorded.text(folder, "metrics.txt")
        window = bench.window_s
        assert window is not None
        blocks = parse_metrics(metrics).num_gpu_blocks
        times = timeline(window[0] - START_S[key] - 10, START_S[key], window)
        load: dict[str, Any] = {"num_prompts": 500, "concurrency": 64, "input_tokens": 1024, "output_tokens": 128}
        natural = parse_server_log(log).num_gpu_blocks_natural or blocks
        record = make_record(
            arm, profile, int(repetition), times, arms=arms, range_ratio=0.0, warmup_requests=2,
            num_gpu_blocks=blocks, num_gpu_blocks_natural=natural,
            telemetry_absent_reason="not recorded", **load,
        )  # fmt: skip
        files = {
            "server.log.gz": gzip.compress(log.encode(), mtime=0),
            "bench.json": json.dumps(bench.scalars).encode(),
            "metrics_after.txt.gz": gzip.compress(metrics.encode(), mtime=0),
            "metrics_before.txt.gz": gzip.compress(_zeroed(metrics).encode(), mtime=0),
        }
        steps = _on_the_clients_clock(parse_steps(recorded.steps_csv(folder)).rows, window[1])
        write_run(root, record, files, requests=map(astuple, bench.requests), steps=steps)
    return root


def _zeroed(metrics: str) -> str:
    """The same scrape with the preemption counter at 0, as before the load."""
    return re.sub(r"(?m)^(vllm:num_preemptions_total\S*) .*$", r"\1 0.0", metrics)


def _on_the_clients_clock(rows: Sequence[StepRow], window_end_s: float) -> list[tuple[Any, ...]]:
    """The recorded trace is not on the client's clock; its last token is put at the window's end."""
    shift = round(window_end_s * 1e9) - max(row.t_ns for row in rows if row.unpadded_tokens is not None)
    return [astuple(replace(row, t_ns=row.t_ns + shift)) for row in rows]


SPEED = {
    "graphs": 1.0,
    "eager": 1.08,
    "graphs_kv_matched": 0.96,
    "eager_kv_matched": 1.12,
    "compile_only": 1.05,
}  # time a token, graphs = 1


def synthetic_store(
    root: Path,
    *,
    repetitions: int = 5,
    simulated: bool = False,
    gpu: GpuIdentity | None = H200,
    arms: Sequence[str] = ("graphs", "eager", "graphs_kv_matched"),
    telemetry: bool = True,
    edges: bool = True,
) -> Path:
    """Two models, two profiles; small runs with fixed noise. `edges`: failed, invalid, set-aside runs."""
    write_header(root, "synthetic", gpu={"name": gpu.name if gpu else None})
    kind: dict[str, Any] = {"simulated": simulated, "gpu": gpu}
    for model in ("7b", "32b"):
        for profile in ("sporadic", "sustained"):
            for repetition in range(1, repetitions + 1):
                for arm in arms:
                    synthetic_run(root, model, arm, profile, repetition, arms, telemetry=telemetry, **kind)
        for arm in ("graphs", "eager"):
            facts = synthetic_facts(model, arm) | (
                {} if arm == "eager" else {"compile_cache": "cold", "torch_compile_s": 27.0}
            )
            write_run(root, make_record(arm, None, None, timeline(0, 90, None), model=model, server_log=facts, **kind))
    if not edges:
        return root
    nowhere = Timeline(run_begin_ns=0, exec_ns=10**9)
    write_run(
        root,
        make_record(
            "eager",
            "sustained",
            1,
            nowhere,
            arms=arms,
            attempt=2,
            status="failed",
            failure_class="out_of_memory",
            failure_message="CUDA out of memory",
            **kind,
        ),
    )
    reason = Reason(
        code="short_output", severity="invalid", evidence="request 3: 37 of 128 tokens", advice="read server.log"
    )
    write_run(
        root,
        make_record(
            "graphs",
            "sustained",
            2,
            nowhere,
            model="7b",
            arms=arms,
            attempt=2,
            status="invalid",
            reasons=(reason,),
            **kind,
        ),
    )
    synthetic_run(root, "32b", "graphs", "sustained", 90, arms, **kind)  # block cut off: no eager
    for pass_number in (1, 2):  # run whole again on another machine; on the first, eager is missing
        for arm in arms if pass_number == 2 else ("graphs", "graphs_kv_matched"):
            synthetic_run(
                root, "7b", arm, "sporadic", 91, arms, pass_number=pass_number, machine_id=f"boot-{pass_number}", **kind
            )
    (root / "runs" / "7b.graphs.sporadic.r92.p1a1.partial").mkdir()
    broken = root / "runs" / "7b.graphs.sporadic.r93.p1a1"
    broken.mkdir()
    (broken / "run.json").write_text('{"schema_version": 1, "kind": "ru')
    return root


def synthetic_facts(model: str, arm: str) -> dict[str, Any]:
    graphs = arm.startswith("graphs")
    big = model == "32b"
    blocks = (2104 if big else 63755) - (235 if arm in ("graphs", "eager_kv_matched") else 0)
    facts = {
        "vllm_version": "0.23.0",
        "enforce_eager": arm.startswith("eager"),
        "cudagraph_mode": "FULL_AND_PIECEWISE" if graphs else "NONE",
        "compile_mode": "NONE" if arm.startswith("eager") else "VLLM_COMPILE",
        "model_load_s": 8.0 if big else 4.0,
        "max_model_len": 4096,
        "engine_init_s": (23.0 if big else 12.0) if graphs else 8.0,
        "kv_tokens": blocks * 16,
        "max_concurrency": blocks * 16 / 4096,
        "num_blocks": blocks,
    }
    if graphs:
        facts |= {
            "capture_s": 9 if big else 3,
            "torch_compile_s": 5.2,
            "compile_cache": "warm",
            "estimated_graph_gib": 0.9,
            "graph_pool_actual_gib": 1.02,
        }
    return facts


def synthetic_run(
    root: Path,
    model: str,
    arm: str,
    profile: str,
    repetition: int,
    arms: Sequence[str],
    *,
    telemetry: bool = False,
    **more: Any,
) -> Path:
    rng = random.Random(f"{model}.{arm}.{profile}.{repetition}.{more.get('pass_number', 1)}")
    facts = synthetic_facts(model, arm)
    concurrency, prompts = (1, 8) if profile == "sporadic" else (8, 24)
    token_s = (
        (0.04 if model == "32b" else 0.01) * SPEED[arm] * rng.uniform(0.99, 1.01) * (1 if profile == "sporadic" else 2)
    )
    begin = 1000.0 * repetition
    start_s = facts["engine_init_s"] + facts["model_load_s"] + 15 + rng.uniform(-0.5, 0.5)
    first = begin + start_s + 5
    requests, clock = [], [first] * concurrency
    for i in range(prompts):
        slot = clock.index(min(clock))
        ttft, itl = 0.1 + 0.01 * i, [round(token_s * 1e6)] * 7
        latency = ttft + sum(itl) / 1e6
        requests.append((i, clock[slot], ttft, latency, 16, 8, itl, ""))
        clock[slot] += latency
    last = max(clock)
    n = 40
    padded = {"graphs": 32, "graphs_kv_matched": 32}.get(arm, 28)
    steps = [
        (
            i,
            round((first + (last - first) * (i + 0.5) / n) * 1e9),
            concurrency,
            3 if profile == "sustained" and 5 <= i < 30 else 0,
            0.5,
            int(i == 10 and profile == "sustained"),
            0,
            8,
            28,
            padded,
            "FULL" if arm.startswith("graphs") else "NONE",
        )
        for i in range(n)
    ]
    steps.insert(
        0, (-1, round((first - 2) * 1e9), 2, 1, 0.1, 0, 32, 2, 2, 2, "NONE")
    )  # warm-up: outside the window, though it waits
    tables: dict[str, Any] = {"requests": requests, "steps": steps}
    if telemetry:
        watts = 300 if arm.startswith("graphs") else 290
        tables["telemetry"] = [
            (
                round((begin + i * 0.1) * 1e9),
                round((7000 + watts * i * 0.1) * 1000),
                watts * 1000,
                1980,
                2619,
                40,
                70000,
                99,
                4 * (i % 4 == 0),  # power limit
            )
            for i in range(int((last - begin) * 10) + 50)
        ]
    tokens, duration = 8 * prompts, last - first
    scalars = {
        "completed": prompts,
        "failed": 0,
        "duration": duration,
        "total_input_tokens": 16 * prompts,
        "total_output_tokens": tokens,
        "output_throughput": tokens / duration,
        "mean_ttft_ms": 1.0,
        "mean_tpot_ms": token_s * 1e3,
        "mean_itl_ms": token_s * 1e3,
    }
    preempted = 'vllm:num_preemptions_total{engine="0"} '
    files = {
        "bench.json": json.dumps(scalars).encode(),
        "metrics_before.txt.gz": gzip.compress((preempted + "2.0\n").encode(), mtime=0),
        "metrics_after.txt.gz": gzip.compress(
            (preempted + ("3.0\n" if profile == "sustained" else "2.0\n")).encode(), mtime=0
        ),
    }
    blocks = facts.pop("num_blocks")
    record = make_record(
        arm,
        profile,
        repetition,
        timeline(begin, start_s, (first, last)),
        model=model,
        arms=arms,
        server_log=facts,
        num_prompts=prompts,
        concurrency=concurrency,
        input_tokens=16,
        output_tokens=8,
        warmup_requests=2,
        num_gpu_blocks=blocks,
        num_gpu_blocks_natural=blocks,
        telemetry_absent_reason=None if telemetry else "no GPU",
        **more,
    )
    return write_run(root, record, files, **tables)
