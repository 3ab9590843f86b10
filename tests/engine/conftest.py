"""Fixtures of the real-engine tests: the engine's CPU build, models for it, one finished campaign."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_campaign import ROOT, Campaign, run_campaign


@pytest.fixture(scope="session")
def engine_python() -> str:
    """Python of the CPU engine: CAMPAIGN_ENGINE_PYTHON, or .venv-engine if it is there."""
    named = os.environ.get("CAMPAIGN_ENGINE_PYTHON")
    python = Path(named) if named else ROOT / ".venv-engine/bin/python"
    if not python.exists():
        if named:
            pytest.fail(f"CAMPAIGN_ENGINE_PYTHON={named} does not exist")
        pytest.skip("the CPU engine is not installed: make test-engine")
    return str(python)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models/ and, filled by the first start, cache/."""
    folder = tmp_path_factory.mktemp("engine")
    script = [sys.executable, str(ROOT / "tools/make_models.py"), str(folder / "models"), "--tiny"]
    subprocess.run(script, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def campaign(engine_python: str, place: Path) -> Campaign:
    """The suite `small`, with one engine core killed in the middle of its load."""
    return run_campaign(engine_python, place, "small", "small", kill=True)


@pytest.fixture(scope="session")
def make_models_script() -> Path:
    return ROOT / "tools/make_models.py"
