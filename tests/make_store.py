"""Results folders for tests: the recorded real runs, and a synthetic campaign with every edge case."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from analysis.formats.bench import parse_bench
from analysis.formats.metrics import parse_metrics
from analysis.formats.run_record import EngineIdentity, GpuIdentity, RunRecord, Timeline
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

ARM_FLAGS: dict[str, tuple[str, ...]] = {
    "graphs": (),
    "graphs_bare": (),
    "eager": ("--enforce-eager",),
    "graphs_kv_matched": ("--num-gpu-blocks-override={eager.num_gpu_blocks}",),
    "eager_kv_matched": ("--enforce-eager", "--num-gpu-blocks-override={graphs.num_gpu_blocks}"),
    "compile_only": ("-cc.cudagraph_mode=NONE", "--num-gpu-blocks-override={eager.num_gpu_blocks}"),
}
CONFIGURATION = {"seed": 1, "arms": {arm: {"flags": list(flags)} for arm, flags in ARM_FLAGS.items()}}


def serve_argv(arm: str, blocks: int | None) -> tuple[str, ...]:
    """The server's command line, with the measured block count where the arm has one."""
    filled = (re.sub(r"\{.*\}", str(blocks), flag) for flag in ARM_FLAGS[arm])
    return ("vllm", "serve", "/models/x", "--cudagraph-metrics", *filled)


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
        json.dumps({"schema_version": 1, "store_id": "x", "campaign": name, "configuration": CONFIGURATION})
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


def wall_start(times: Timeline, log: str) -> str:
    """A calendar time of the run's begin with which its health and the log's clock agree."""
    clock_s = parse_server_log(log).ready_clock_s or 0
    begin_s = (clock_s - ((times.healthy_ns or 0) - times.run_begin_ns) / 1e9) % 900
    return f"2026-11-29T17:{int(begin_s) // 60:02}:{begin_s % 60:06.3f}+00:00"


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
    arms = ("eager", "graphs", "graphs_kv_matched", "compile_only")  # as they were run
    for folder in recorded.GPU_RUNS:
        key = folder.removeprefix("32b-")
        arm, profile, repetition = key.rsplit("-", 2)
        bench = parse_bench(recorded.data(folder, "bench.json"))
        log = recorded.text(folder, "server.log")
        metrics = with_counters(recorded.text(folder, "metrics.txt"), prefix_cache_hits_total=0)  # recorded with it on
        window = bench.window_s
        assert window is not None
        blocks = parse_metrics(metrics).num_gpu_blocks
        times = timeline(window[0] - START_S[key] - 10, START_S[key], window)
        load: dict[str, Any] = {"num_prompts": 500, "concurrency": 64, "input_tokens": 1024, "output_tokens": 128}
        natural = parse_server_log(log).num_gpu_blocks_natural or blocks
        record = make_record(
            arm, profile, int(repetition), times, arms=arms, range_ratio=0.0, warmup_requests=2,
            num_gpu_blocks=blocks, num_gpu_blocks_natural=natural, serve_argv=serve_argv(arm, blocks),
            telemetry_absent_reason="not recorded", wall_start=wall_start(times, log), **load,
        )  # fmt: skip
        files = {
            "server.log.gz": gzip.compress(log.encode(), mtime=0),
            "bench.json": json.dumps(bench.scalars).encode(),
            "metrics_after.txt.gz": gzip.compress(metrics.encode(), mtime=0),
            "metrics_before.txt.gz": gzip.compress(with_counters(metrics, **PROBE_ALONE).encode(), mtime=0),
        }
        steps = _on_the_clients_clock(parse_steps(recorded.steps_csv(folder)).rows, window[1])
        write_run(root, record, files, requests=[row[:8] for row in bench.requests], steps=steps)
    return root


# the scrape before the load is not recorded: it is the one after it with the probe alone
PROBE_ALONE = {
    "generation_tokens_total": 1,
    "prompt_tokens_total": 32,
    "request_params_max_tokens_sum": 1,
    "num_preemptions_total": 0,
}


def with_counters(metrics: str, **values: int) -> str:
    """The same scrape with other values; names without their `vllm:`."""
    for name, value in values.items():
        metrics, found = re.subn(rf"(?m)^(vllm:{name}(?:\{{[^}}]*\}})?) .*$", rf"\g<1> {value}", metrics)
        assert found, name
    return metrics


def _on_the_clients_clock(rows: Sequence[StepRow], window_end_s: float) -> list[tuple[Any, ...]]:
    """The recorded trace is not on the client's clock; its last token is put at the window's end."""
    shift = round(window_end_s * 1e9) - max(row.t_ns for row in rows if row.unpadded_tokens is not None)
    return [row._replace(t_ns=row.t_ns + shift) for row in rows]


SPEED = {
    "graphs": 1.0,
    "eager": 1.08,
    "graphs_bare": 0.995,
    "graphs_kv_matched": 0.96,
    "eager_kv_matched": 1.12,
    "compile_only": 1.05,
}  # time a token, graphs = 1


OVERRIDDEN = ("graphs_kv_matched", "eager_kv_matched", "compile_only")


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
            cold = {} if arm == "eager" else {"compile_cache": "cold", "torch_compile_s": 27.0}
            synthetic_prime(root, model, arm, cold, **kind)
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
    synthetic_run(root, "7b", "graphs", "sustained", 2, arms, attempt=2, short=3, **kind)
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
        "compile_cache": "none",
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
    facts: dict[str, Any] | None = None,
    short: int | None = None,
    begin: float | None = None,
    **more: Any,
) -> Path:
    """`facts`: other than usual in the server log; `short`: a request that gets too few tokens; `begin` (s): None for a
    time when no other run is."""
    rng = random.Random(f"{model}.{arm}.{profile}.{repetition}.{more.get('pass_number', 1)}")
    facts = synthetic_facts(model, arm) | (facts or {})
    concurrency, prompts = (1, 8) if profile == "sporadic" else (8, 24)
    token_s = (
        (0.04 if model == "32b" else 0.01) * SPEED[arm] * rng.uniform(0.99, 1.01) * (1 if profile == "sporadic" else 2)
    )
    turn = (model == "32b") * 20 + (profile == "sustained") * 10 + list(SPEED).index(arm)
    turn += 100 * repetition + 10_000 * more.get("attempt", 1) + 100_000 * more.get("pass_number", 1)
    begin = 100.0 * turn if begin is None else begin
    start_s = facts["engine_init_s"] + facts["model_load_s"] + 15 + rng.uniform(-0.5, 0.5)
    first = begin + start_s + 5
    requests, clock = [], [first] * concurrency
    for i in range(prompts):
        slot = clock.index(min(clock))
        ttft, itl = 2.0 + 0.01 * i, [round(token_s * 1e6)] * 7
        latency = ttft + sum(itl) / 1e6
        requests.append((i, clock[slot], ttft, latency, 16, 5 if i == short else 8, itl, ""))
        clock[slot] += latency
    last = max(clock)
    tokens, duration = sum(r[5] for r in requests), last - first
    n = 40
    padded = {"graphs": 32, "graphs_kv_matched": 32, "graphs_trimmed": 32}.get(arm, 28)
    steps = [
        (
            i,
            round((first + (last - first) * (i + 0.5) / n) * 1e9),
            concurrency,
            3 if profile == "sustained" and 5 <= i < 30 else 0,
            0.5,
            int(i == 10 and profile == "sustained"),
            prompts * 16 if i == 0 else 0,
            tokens * (i + 1) // n - tokens * i // n,
            28,
            padded,
            "FULL" if arm.startswith("graphs") else "NONE",
        )
        for i in range(n)
    ]
    steps.insert(
        0, (-1, round((first - 2) * 1e9), 2, 1, 0.1, 0, 80, 20, 2, 2, "NONE")
    )  # probe and warm-ups: outside the window, though it waits
    tables: dict[str, Any] = {"requests": requests} | ({"steps": steps} if more.get("instruments", True) else {})
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
                70000 if 0.5 <= i * 0.1 <= last - begin + 1 else 0,
                99,
                4 * (i % 4 == 0),  # power limit
            )
            for i in range(int((last - begin) * 10) + 50)
        ]
    scalars = {
        "num_prompts": prompts,
        "completed": prompts,
        "failed": 0,
        "duration": duration,
        "total_input_tokens": 16 * prompts,
        "total_output_tokens": tokens,
        "output_throughput": tokens / duration,
        "mean_ttft_ms": sum(r[2] for r in requests) / prompts * 1e3,
        "mean_tpot_ms": sum((r[3] - r[2]) / (r[5] - 1) for r in requests) / prompts * 1e3,
        "mean_itl_ms": token_s * 1e3,
    }
    blocks = facts["num_blocks"]
    preempted = int(profile == "sustained")
    files = {
        "server.log.gz": gzip.compress(synthetic_log(facts, arm, more).encode(), mtime=0),
        "bench.json": json.dumps(scalars).encode(),
        "metrics_before.txt.gz": synthetic_metrics(facts, generated=4, prompt=48, preempted=0),
        "metrics_after.txt.gz": synthetic_metrics(
            facts, generated=20 + tokens, prompt=80 + 16 * prompts, preempted=preempted
        ),
    }
    record = make_record(
        arm,
        profile,
        repetition,
        timeline(begin, start_s, (first, last)),
        model=model,
        arms=arms,
        serve_argv=serve_argv(arm, blocks),
        num_prompts=prompts,
        concurrency=concurrency,
        input_tokens=16,
        output_tokens=8,
        warmup_requests=2,
        num_gpu_blocks=blocks,
        num_gpu_blocks_natural=9999 if arm in OVERRIDDEN else blocks,
        telemetry_absent_reason=None if telemetry else "no GPU",
        **more,
    )
    return write_run(root, record, files, **tables)


def synthetic_prime(root: Path, model: str, arm: str, facts: dict[str, Any], **more: Any) -> Path:
    facts = synthetic_facts(model, arm) | facts
    blocks = facts["num_blocks"]
    files = {
        "server.log.gz": gzip.compress(synthetic_log(facts, arm, more).encode(), mtime=0),
        "metrics_before.txt.gz": synthetic_metrics(facts, generated=4, prompt=48, preempted=0),
    }
    times = timeline(100.0 * ((model == "32b") * 10 + list(SPEED).index(arm)), 90, None)
    argv = serve_argv(arm, blocks)
    record = make_record(arm, None, None, times, model=model, serve_argv=argv, num_gpu_blocks=blocks, **more)
    return write_run(root, record, files)


def synthetic_metrics(facts: dict[str, Any], *, generated: int, prompt: int, preempted: int) -> bytes:
    told = f'block_size="{facts["block_size"]}",' if "block_size" in facts else ""
    lines = [
        f'vllm:cache_config_info{{{told}engine="0",num_gpu_blocks="{facts["num_blocks"]}"}} 1.0',
        f'vllm:num_preemptions_total{{engine="0"}} {preempted}.0',
        f'vllm:generation_tokens_total{{engine="0"}} {generated}.0',
        f'vllm:prompt_tokens_total{{engine="0"}} {prompt}.0',
        'vllm:prefix_cache_hits_total{engine="0"} 0.0',
    ]
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)


def synthetic_log(facts: dict[str, Any], arm: str, more: dict[str, Any]) -> str:
    """The lines of an engine log that tell these facts."""
    graphs = facts["cudagraph_mode"] != "NONE"
    lines = ["Resolved architecture: Qwen2ForCausalLM", f"Using max model len {facts['max_model_len']}"]
    lines += [
        "Chunked prefill is enabled with max_num_batched_tokens=8192.",
        "Using FLASH_ATTN attention backend out of x",
    ]
    if more.get("simulated"):
        lines.append("SIMULATED: no engine")
    lines.append(
        f"Initializing a V1 LLM engine (v{facts['vllm_version']}) with config: enforce_eager={facts['enforce_eager']},"
        f" 'mode': <CompilationMode.{facts['compile_mode']}: 3>, 'cudagraph_mode': <CUDAGraphMode."
        f"{facts['cudagraph_mode']}: 2>, 'cudagraph_capture_sizes': {[1, 2, 4, 8, 16, 24, 32] if graphs else []}"
    )
    lines.append(f"Model loading took 14.3 GiB memory and {facts['model_load_s']} seconds")
    compiled = ""
    if facts["compile_mode"] != "NONE":
        took = facts.get("torch_compile_s", 5.0)
        state = {
            "warm": "Directly load AOT compilation from path x",
            "cold": "Compiling a graph for compile range x takes 3 s",
        }
        lines += ["Dynamo bytecode transform time: 3.0 s", state[facts["compile_cache"]]]
        lines += [f"torch.compile took {took} s in total", "Initial profiling/warmup run took 0.1 s"]
        compiled = f" (compilation: {took} s)"
    if graphs:
        lines.append(f"Estimated CUDA graph memory: {facts['estimated_graph_gib']} GiB total")
    lines.append("Available KV cache memory: 8.0 GiB")
    if arm in OVERRIDDEN:
        lines.append(f"Overriding num_gpu_blocks=9999 with num_gpu_blocks_override={facts['num_blocks']}")
    lines.append(f"GPU KV cache size: {facts['kv_tokens']:,} tokens")
    lines.append(f"Maximum concurrency for 4,096 tokens per request: {facts['max_concurrency']}x")
    if graphs:
        lines.append(f"Graph capturing finished in {facts['capture_s']} secs, took 1.0 GiB")
        lines.append(f"CUDA graph pool memory: {facts['graph_pool_actual_gib']} GiB (actual), 1 GiB (estimated)")
    took_s = facts["engine_init_s"]
    lines.append(f"init engine (profile, create kv cache, warmup model) took {took_s} s{compiled}")
    headed = "".join(f"INFO 11-29 17:32:41 [x.py:1] {line}\n" for line in lines)
    return f"{headed}INFO:     Application startup complete.\n"
