"""A folder with compose.yaml and a small campaign, and what the tests do in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
OWNER = 1234  # of the results folder
TOML = """
[campaign]
name = "test"
seed = 1
repetitions = 1
[engine]
kind = "stand-in"
version = "0.23.0"
image = "eager-cost/campaign:0.1.0"
gpu_memory_utilization = 0.92
max_model_len = 4096
retries = 0
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
[profile.sustained]
prompts = 96
concurrency = 64
input_tokens = 1024
output_tokens = 128
[[suite.published]]
models = ["7b"]
arms = ["graphs", "eager"]
profiles = ["sustained"]
"""
NO_GPU = """
services:
  campaign: {gpus: !reset null}
  campaign-process: {gpus: !reset null}
"""


@dataclass(frozen=True)
class Project:
    """A checkout's compose file beside a small campaign.toml; results/ belongs to OWNER."""

    folder: Path
    environment: dict[str, str]

    def _compose(self, *words: str) -> list[str]:
        return ["docker", "compose", "-f", "compose.yaml", "-f", "no-gpu.yaml", *words]

    def docker(self, *words: str) -> str:
        return subprocess.run(
            ["docker", *words], env=self.environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def start(
        self, service: str, *command: str, speed: int = 200, options: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        words = self._compose("run", "--rm", "-T", "-e", f"CAMPAIGN_STANDIN_SPEED={speed}", *options, service, *command)
        return subprocess.Popen(
            words, cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, service: str, *command: str, status: int = 0, **more: object) -> str:
        process = self.start(service, *command, **more)  # type: ignore[arg-type]
        output, _ = process.communicate(timeout=120)
        assert process.returncode == status, output
        return output

    def containers(self, label: str) -> list[str]:
        return self.docker("ps", "-aq", "--no-trunc", "--filter", f"label={label}").split()

    def left(self) -> str:
        """The engine's containers that are still there, for a reader of a failed test; empty if none."""
        words = "{{.ID}} {{.CreatedAt}} {{.Status}} {{.Labels}} {{.Command}}"
        return self.docker("ps", "-a", "--no-trunc", "--filter", "label=eager-cost.run", "--format", words)

    def campaign(self) -> str:
        """The campaign's own container, as compose marks it."""
        (found,) = self.containers("com.docker.compose.oneoff=True")
        return found

    def clean(self) -> None:
        for container in self.containers("eager-cost.run"):
            self.docker("rm", "-f", container)
        down = self._compose("down", "-v", "--remove-orphans")
        subprocess.run(down, cwd=self.folder, env=self.environment, check=True, capture_output=True)

    def runs(self, kind: str = "runs") -> list[str]:
        return sorted(p.name for p in (self.folder / "results/here" / kind).glob("*") if p.suffix != ".partial")
