"""A folder with compose.yaml and a small campaign, and what the tests do in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.make_config import toml

ROOT = Path(__file__).parent.parent.parent
OWNER = 1234  # of the results folder
TOML = toml(
    ('version = "0.23.0"', 'version = "0.23.0"\nimage = "eager-cost/campaign:0.1.0"\nretries = 0'),
    ("small", "sustained"),
    ("prompts = 40", "prompts = 96"),
    ("concurrency = 8", "concurrency = 64"),
    ("input_tokens = 128", "input_tokens = 1024"),
    ("output_tokens = 16", "output_tokens = 128"),
)
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
