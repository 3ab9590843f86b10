"""Failure classes from logs: recorded failed starts, and messages of the engine's, torch's and CUDA's."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.formats.bench import parse_bench
from analysis.formats.failure import FAILURES, classify_failure, root_causes
from tests import recorded

HEAD = "(EngineCore pid=7) ERROR 11-29 18:30:08 [core.py:1195] "
STOP = "(EngineCore pid=7) INFO 11-29 17:35:36 [core.py:1] [shutdown] EngineCore: trigger received signal=15"
MESSAGES = {
    "container_runtime_missing": 'docker: Error response from daemon: could not select device driver "nvidia" with '
    "capabilities: [[gpu]].",
    "docker_missing": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?",
    "driver_mismatch": "RuntimeError: Error 803: system has unsupported display driver",
    "gpu_lost": "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
    "gpu_busy": "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired "
    "GPU memory utilization (0.9, 42.64 GiB).",
    "out_of_memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 270.00 MiB.",
    "kv_too_small": "ValueError: To serve at least one request with the model's max seq len (4096), "
    "1.0 GiB KV cache is needed, which is larger than the available KV cache memory (0.5 GiB).",
    "kv_too_large": "ValueError: Available memory on node 0 (20.97/22.34 GiB) on kv cache allocation is less "
    "than requested memory for kv (400.0 GiB).",
    "disk_full": "OSError: [Errno 28] No space left on device",
    "host_out_of_memory": "OSError: [Errno 12] Cannot allocate memory",
    "port_taken": "OSError: [Errno 98] Address already in use",
    "bad_flag": "vllm serve: error: argument --max-model-len: invalid human_readable_int value: 'x'",
    "unknown_environment": "ValueError: Unknown vLLM environment variable detected: VLLM_USE_V1",
    "model_missing": "OSError: /models/x does not appear to have a file named config.json.",
    "no_gpu": "RuntimeError: Failed to infer device type, please set the environment variable",
    "toolchain_missing": "RuntimeError: Failed to find C compiler. Please specify via CC.",
    "engine_not_installed": "/usr/bin/python: No module named vllm",
    "too_many_open_files": "OSError: [Errno 24] Too many open files",
    "bad_value": "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "cuda_error": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "engine_unreachable": "ClientConnectorError: Cannot connect to host 127.0.0.1:8111",
    "engine_died": "RuntimeError: Engine core initialization failed. See root cause above.",
}


@pytest.mark.parametrize(
    ("case", "expected", "cause"),
    [
        ("badflag", "bad_flag", "unrecognized arguments: --no-such-flag"),
        ("badval", "bad_value", "ValidationError"),
        ("hugebytes", "kv_too_large", "ValueError: Available memory on node 0"),
        ("nomodel", "model_missing", "HFValidationError"),
        ("port", "port_taken", "Address already in use"),
    ],
)
def test_recorded_failed_starts(case: str, expected: str, cause: str) -> None:
    text = recorded.error_log(case)
    found = classify_failure(text)
    assert found is not None
    assert found[0] == expected
    assert found[1]
    assert cause in root_causes(text)[0]


def test_recorded_causes_leave_out_what_only_follows() -> None:
    assert len(root_causes(recorded.error_log("hugebytes"))) == 1


def test_recorded_killed_core_is_a_death() -> None:
    text = recorded.text(recorded.CPU, "killed.log")
    found = classify_failure(text)
    assert found is not None
    assert found[0] == "engine_died"


def test_recorded_errors_of_a_bench_against_a_dead_server() -> None:
    bench = parse_bench(recorded.data("cpu-errors", "bench_dead_server.json"))
    found = classify_failure(bench.requests[0].error)
    assert found is not None
    assert found[0] == "engine_unreachable"


@pytest.mark.parametrize("folder", [*recorded.GPU_RUNS, recorded.CPU])
def test_recorded_good_runs_have_no_failure(folder: str) -> None:
    text = recorded.text(folder, "server.log")
    assert classify_failure(text) is None
    assert root_causes(text) == ()


def test_every_pattern_has_a_message() -> None:
    assert MESSAGES.keys() == {name for name, known in FAILURES.items() if known.patterns}


@pytest.mark.parametrize("expected", MESSAGES)
@pytest.mark.parametrize("head", ["", HEAD])
def test_every_class_is_recognised_with_a_next_step(expected: str, head: str) -> None:
    found = classify_failure(f"INFO: fine\n{head}{MESSAGES[expected]}\n")
    assert found is not None
    assert found[0] == expected
    assert found[1].endswith(".")


def test_a_cause_goes_before_its_consequence() -> None:
    text = f"{HEAD}{MESSAGES['engine_died']}\n{HEAD}{MESSAGES['gpu_busy']}\n"
    found = classify_failure(text)
    assert found is not None
    assert found[0] == "gpu_busy"
    assert root_causes(text) == (MESSAGES["gpu_busy"],)


def test_consequence_alone_is_told() -> None:
    assert root_causes(f"{HEAD}{MESSAGES['engine_died']}\n") == (MESSAGES["engine_died"],)


def test_errors_after_a_requested_stop_do_not_count() -> None:
    assert classify_failure(f"{STOP}\n{HEAD}{MESSAGES['engine_died']}\n") is None


@given(st.text())
def test_any_text_is_classified_or_not(text: str) -> None:
    found = classify_failure(text)
    assert found is None or found[0] in FAILURES
    assert len(root_causes(text)) <= 20


def test_every_class_has_a_next_step_and_says_what_happens_then() -> None:
    for name, known in FAILURES.items():
        assert known.then in ("retry", "give_up", "stop"), name
        assert known.hint.endswith("."), name


def test_the_runner_names_no_class_that_the_table_lacks() -> None:
    """Every literal class given to EngineFailed, death() or Watch.until()."""
    places = {"EngineFailed": 1, "death": 2, "until": 2}
    named = set()
    for path in (Path(__file__).parent.parent / "runner").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call):
                name = getattr(call.func, "id", getattr(call.func, "attr", None))
                at = places.get(str(name))
                if at is not None and len(call.args) > at and isinstance(call.args[at], ast.Constant):
                    named.add(call.args[at].value)  # type: ignore[attr-defined]
    assert len(named) > 8
    assert named <= FAILURES.keys()
