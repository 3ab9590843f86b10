"""Facts of the engine's log, on recorded logs and on lines that the recordings do not have."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.formats.server_log import PaddingRow, ServerLog, missing_facts, parse_server_log
from analysis.formats.steps import parse_steps
from tests import recorded


def log(folder: str) -> ServerLog:
    return parse_server_log(recorded.text(folder, "server.log"))


def line(message: str, process: str = "EngineCore", time: str = "11-29 17:26:57") -> str:
    return f"({process} pid=7) INFO {time} [some_file.py:12] {message}\n"


def test_graphs_with_a_cold_cache() -> None:
    facts = log(recorded.GRAPHS)
    assert facts.vllm_version == "0.23.0"
    assert facts.architecture == "Qwen2ForCausalLM"
    assert (facts.max_model_len, facts.max_num_batched_tokens) == (4096, 8192)
    assert (facts.enforce_eager, facts.prefix_caching) == (False, True)
    assert (facts.cudagraph_mode, facts.compile_mode) == ("FULL_AND_PIECEWISE", "VLLM_COMPILE")
    assert (len(facts.capture_sizes), facts.capture_sizes[-1]) == (51, 512)
    assert facts.attention_backend == "FLASH_ATTN"
    assert facts.weights_load_s is None  # dummy weights
    assert (facts.model_load_gib, facts.model_load_s) == (61.04, 0.893466)
    assert (facts.compile_cache, facts.dynamo_s, facts.inductor_s) == ("cold", 10.56, 14.03)
    assert (facts.torch_compile_s, facts.profiling_s) == (33.93, 1.17)
    assert (facts.estimated_graph_gib, facts.available_kv_gib) == (0.90, 7.3)
    assert (facts.kv_tokens, facts.max_concurrency) == (29_904, 7.30)
    assert (facts.num_gpu_blocks_natural, facts.num_gpu_blocks_override) == (None, None)
    assert (facts.capture_s, facts.capture_gib, facts.graph_pool_actual_gib) == (9, 1.02, 1.02)
    assert (facts.graphs_captured_piecewise, facts.graphs_captured_full) == (51, 51)
    assert (facts.engine_init_s, facts.engine_init_compile_s) == (55.86, 33.93)
    assert [e.kernel for e in facts.jit_events] == ["_compute_slot_mapping_kernel"]
    assert (facts.application_started, facts.phase) == (True, "serving")
    assert facts.shutdown_requested
    assert facts.error_lines == ()


def test_graphs_with_a_warm_cache() -> None:
    facts = log(recorded.GRAPHS_WARM)
    assert (facts.compile_cache, facts.torch_compile_s, facts.inductor_s) == ("warm", 9.74, None)


def test_kv_matched_tells_natural_and_override() -> None:
    facts = log(recorded.MATCHED)
    assert (facts.num_gpu_blocks_natural, facts.num_gpu_blocks_override) == (1869, 2104)
    assert facts.kv_tokens == 33_664


def test_eager() -> None:
    facts = log(recorded.EAGER)
    assert (facts.enforce_eager, facts.cudagraph_mode, facts.compile_mode) == (True, "NONE", "NONE")
    assert facts.compile_cache == "none"
    for absent in ("dynamo_s", "torch_compile_s", "capture_s", "capture_gib", "estimated_graph_gib"):
        assert getattr(facts, absent) is None
    assert facts.capture_sizes == ()
    assert (facts.graphs_captured_piecewise, facts.engine_init_compile_s) == (None, None)
    assert facts.engine_init_s == 8.55


def test_compile_only() -> None:
    facts = log(recorded.COMPILE_ONLY)
    assert (facts.enforce_eager, facts.cudagraph_mode, facts.compile_mode) == (False, "NONE", "VLLM_COMPILE")
    assert (facts.compile_cache, facts.capture_s) == ("cold", None)


def test_cpu_build() -> None:
    facts = log(recorded.CPU)
    assert (facts.vllm_version, facts.attention_backend) == ("0.23.0", "CPU_ATTN")
    assert (facts.enforce_eager, facts.prefix_caching, facts.kv_tokens) == (True, False, 1280)
    assert (facts.num_gpu_blocks_natural, facts.num_gpu_blocks_override) == (1024, 40)
    assert facts.model_load_s is None
    assert {row.mode for row in facts.padding_rows} == {"NONE"}
    assert facts.error_lines == ()  # EngineDeadError after a requested stop is no error


def test_killed_engine_core_is_no_requested_stop() -> None:
    facts = parse_server_log(recorded.text(recorded.CPU, "killed.log"))
    assert not facts.shutdown_requested
    assert "engine core exited unexpectedly" in facts.error_lines[0]


@pytest.mark.parametrize(
    ("folder", "graphs", "compiled", "gpu"),
    [
        (recorded.GRAPHS, True, True, True),
        (recorded.GRAPHS_WARM, True, True, True),
        (recorded.MATCHED, True, True, True),
        (recorded.EAGER, False, False, True),
        (recorded.COMPILE_ONLY, False, True, True),
        (recorded.CPU, False, False, False),
    ],
)
def test_recorded_logs_miss_no_fact(folder: str, graphs: bool, compiled: bool, gpu: bool) -> None:
    assert missing_facts(log(folder), graphs=graphs, compiled=compiled, gpu=gpu) == ()


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("GPU KV cache size", "KV pool", "kv_tokens"),
        ("Graph capturing finished", "Graphs done", "capture_s"),
        ("Estimated CUDA graph memory", "Graph memory estimate", "estimated_graph_gib"),
        ("torch.compile took", "Compilation took", "torch_compile_s"),
        ("init engine (profile", "engine init (profile", "engine_init_s"),
        ("Available KV cache memory", "KV memory", "available_kv_gib"),
        ("Application startup complete", "Started", "application_started"),
        ("'cudagraph_capture_sizes'", "'sizes'", "capture_sizes"),
        ("CompilationMode.", "Mode", "compile_mode"),
        ("Model loading took", "Loaded the model:", "model_load_s"),
    ],
)
def test_renamed_line_is_a_missing_fact(old: str, new: str, fact: str) -> None:
    text = recorded.text(recorded.GRAPHS, "server.log")
    assert old in text
    facts = parse_server_log(text.replace(old, new))
    assert fact in missing_facts(facts, graphs=True, compiled=True, gpu=True)


def test_padding_tables_are_summed() -> None:
    table = line("| 27              | 32            | 5            | FULL         | 89    |")
    other = line("| 3 | 4 | 1 | PIECEWISE | 2 |")
    assert parse_server_log(table + other + table).padding_rows == (
        PaddingRow(3, 4, 1, "PIECEWISE", 2),
        PaddingRow(27, 32, 5, "FULL", 178),
    )


def test_recorded_padding_tables_agree_with_the_step_trace() -> None:
    steps = Counter(
        (row.unpadded_tokens, row.padded_tokens, row.runtime_mode)
        for row in parse_steps(recorded.steps_csv(recorded.GRAPHS)).rows
    )
    rows = log(recorded.GRAPHS).padding_rows
    assert max(rows, key=lambda row: row.count) == PaddingRow(27, 32, 5, "FULL", 775)
    for row in rows:  # the engine does not print a run's last seconds, so the log may lag behind
        assert row.count <= steps[row.unpadded, row.padded, row.mode]


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [
        ("GPU KV cache size: 2,042,016 tokens", "kv_tokens", 2_042_016),
        ("Estimated CUDA graph memory: -0.12 GiB total", "estimated_graph_gib", -0.12),
        ("Model loading took 61.04 GiB and 0.893466 seconds", "model_load_gib", 61.04),
        ("Loading weights took 12.34 seconds", "weights_load_s", 12.34),
        ("Using AttentionBackendEnum.FLASH_ATTN backend.", "attention_backend", "FLASH_ATTN"),
        ("torch.compile and initial profiling/warmup run together took 3.50 s in total", "torch_compile_s", 3.5),
        ("Compiling model again due to a load failure from /x, reason: bad magic", "compile_cache", "invalid"),
        (
            "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 3.198 s",
            "compile_cache",
            "partial",
        ),
    ],
)
def test_lines_of_other_configurations(message: str, name: str, value: object) -> None:
    assert getattr(parse_server_log(line(message)), name) == value
    assert getattr(parse_server_log(line(message).replace("\n", "\r\n")), name) == value


def test_single_line_banner_gives_the_version() -> None:
    banner = line("vLLM server version 0.23.0, serving model /models/x", process="APIServer")
    assert parse_server_log(banner).vllm_version == "0.23.0"


def test_kernel_compilations_are_timed_from_the_start_line() -> None:
    start = line("Starting vLLM server on http://127.0.0.1:8000", time="12-31 23:59:58")
    message = "Triton kernel JIT compilation during inference: k. This causes a latency spike."
    jit = line(message, time="01-01 00:00:03")
    events = parse_server_log(start + jit).jit_events
    assert [(e.kernel, e.after_ready_s) for e in events] == [("k", 5)]
    assert parse_server_log(jit).jit_events[0].after_ready_s is None


@pytest.mark.parametrize(
    ("until", "phase"),
    [
        ("Initializing a V1 LLM engine", "starting"),
        ("Model loading took", "loading"),
        ("torch.compile took", "compiling"),
        ("GPU KV cache size", "profiling"),
        ("Graph capturing finished", "capturing"),
        ("Application startup complete", "finishing"),
    ],
)
def test_phase_of_a_log_that_ends_early(until: str, phase: str) -> None:
    text = recorded.text(recorded.GRAPHS, "server.log")
    head = text[: text.rindex("\n", 0, text.index(until))]
    facts = parse_server_log(head)
    assert facts.phase == phase
    assert facts.last_line
    assert not facts.application_started


def test_last_line_of_a_hang_in_capture() -> None:
    text = recorded.text(recorded.GRAPHS, "server.log")
    bar = "Capturing CUDA graphs (decode, FULL):  43%"
    assert parse_server_log(text[: text.index(bar) + 50]).last_line.startswith(bar)


@pytest.mark.parametrize("folder", [*recorded.GPU_RUNS, recorded.CPU])
def test_facts_survive_json(folder: str) -> None:
    facts = log(folder)
    assert json.loads(json.dumps(facts.to_dict())) == facts.to_dict()


pieces = st.sampled_from(
    [
        "(EngineCore pid=1) INFO 11-29 17:25:38 [a.py:1] ",
        "Initializing a V1 LLM engine (v",
        "'cudagraph_capture_sizes': [",
        "GPU KV cache size: ",
        "99,9٣",
        " tokens",
        "| 1 | 2 | 1 | FULL | 1 |",
        "02-30 99:99:99",
        "WARNING 02-30 99:99:99 [a.py:1] Triton kernel JIT compilation during inference: k. ",
        "\r",
        "\n",
        "\x85",
    ]
)


@given(st.text() | st.lists(pieces | st.text(max_size=8), max_size=30).map("".join))
def test_any_text_gives_facts_that_survive_json(text: str) -> None:
    facts = parse_server_log(text)
    assert json.loads(json.dumps(facts.to_dict())) == facts.to_dict()
    assert missing_facts(facts, graphs=True, compiled=True, gpu=True)


@given(st.binary(max_size=400))
def test_any_bytes_decoded_leniently_are_read(data: bytes) -> None:
    parse_server_log(data.decode(errors="replace"))
