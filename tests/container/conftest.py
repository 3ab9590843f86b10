"""A Docker engine for these tests, the images built on it, and a project folder to run compose in.

The engine is a private one (tools/container/engine-up.sh: Debian or Ubuntu, root), ended afterwards unless
CAMPAIGN_KEEP_ENGINE=1. With CAMPAIGN_BASE_IMAGE set, the engine that docker finds is used instead, and that image
(Python 3.11 or newer and pip) stands in for both bases.
Without an engine the tests are skipped, or fail if CAMPAIGN_EXPECT_DOCKER=1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from compose_project import NO_GPU, OWNER, ROOT, TOML, Project


@pytest.fixture(scope="session")
def docker() -> Iterator[dict[str, str]]:
    """The environment in which `docker` reaches an engine and compose finds the base images."""
    base, found = os.environ.get("CAMPAIGN_BASE_IMAGE"), dict(os.environ)
    if base is None:
        script = ROOT / "tools/container/engine-up.sh"
        done = subprocess.run([script], capture_output=True, text=True, check=False)
        for name, value in re.findall(r"(\w+)=(\S+)", done.stdout):
            found[name] = value.replace("$PATH", os.environ["PATH"])
        base, problem = "local/debian:python", done.stderr if done.returncode else ""
    else:
        done = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False)
        problem = done.stderr if done.returncode else ""
    if problem:
        text = f"NO CONTAINER ENGINE, NOTHING OF THE IMAGES IS TESTED: {problem.strip()[-400:]}"
        if os.environ.get("CAMPAIGN_EXPECT_DOCKER") == "1":
            pytest.fail(text)
        pytest.skip(text)
    if "CAMPAIGN_BASE_IMAGE" not in os.environ:
        for left in Project(ROOT, found).containers("eager-cost.run"):  # of tests that were killed
            subprocess.run(["docker", "rm", "-f", left], env=found, check=True, capture_output=True)
    socket = found.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    yield found | {"ENGINE_IMAGE": base, "PYTHON_IMAGE": base, "DOCKER_SOCKET": socket}
    if "CAMPAIGN_BASE_IMAGE" not in os.environ and os.environ.get("CAMPAIGN_KEEP_ENGINE") != "1":
        subprocess.run([ROOT / "tools/container/engine-down.sh"], check=True)


@pytest.fixture(scope="session")
def images(docker: dict[str, str]) -> dict[str, str]:
    """The same, with the images of every service built as compose builds them."""
    build = ["docker", "compose", "build", "-q", "campaign", "report", "demo"]
    done = subprocess.run(build, cwd=ROOT, env=docker, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return docker


@pytest.fixture
def project(images: dict[str, str], tmp_path: Path) -> Iterator[Project]:
    shutil.copy(ROOT / "compose.yaml", tmp_path)
    (tmp_path / "campaign.toml").write_text(TOML)
    (tmp_path / "no-gpu.yaml").write_text(NO_GPU)
    for path in (tmp_path, tmp_path / "campaign.toml"):
        path.chmod(0o755)
    (tmp_path / "results").mkdir()
    os.chown(tmp_path / "results", OWNER, OWNER)
    name = re.sub("[^a-z0-9]", "", tmp_path.name.lower())
    project = Project(tmp_path, images | {"COMPOSE_PROJECT_NAME": f"test-{name}"})
    yield project
    project.clean()
