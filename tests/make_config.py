"""One small campaign.toml for the tests: two arms of one model on the stand-in engine, changed as a test needs it."""

from __future__ import annotations

TOML = """
[campaign]
name = "test"
seed = 1
repetitions = 1
[engine]
kind = "stand-in"
version = "0.23.0"
memory_budget_gib = 72.8
max_model_len = 4096
flags = ["--no-enable-prefix-caching", "--generation-config vllm", "--cudagraph-metrics", "--dtype bfloat16"]
probe = {input_tokens = 64, output_tokens = 4}
[[model]]
name = "7b"
repository = "Qwen/Qwen2.5-7B-Instruct"
revision = "a09a35458c702b33eeacc393d103063234e8bc28"
weights = "dummy"
directory = "qwen2.5-7b"
[arm.graphs]
flags = []
[arm.eager]
flags = ["--enforce-eager"]
[profile.small]
prompts = 40
concurrency = 8
input_tokens = 128
output_tokens = 16
[[suite.published]]
models = ["7b"]
arms = ["graphs", "eager"]
profiles = ["small"]
"""


def toml(*edits: tuple[str, str]) -> str:
    """TOML with each (old, new) replaced. AssertionError when an old text is not there."""
    text = TOML
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text
