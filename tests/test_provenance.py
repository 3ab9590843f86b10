"""Provenance of a sitting: what it holds, what must agree, and an engine that cannot be asked."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner import provenance
from runner.config import Config, load_config
from runner.errors import PreflightError
from runner.launcher import EngineHost
from runner.provenance import MUST_AGREE, collect_provenance
from runner.units import cpu_list

CAMPAIGN = Path(__file__).parent.parent / "campaign.toml"


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(CAMPAIGN)


def host(tmp_path: Path, *path: str, python: str = sys.executable, kind: Any = "vllm") -> EngineHost:
    return EngineHost(python, path, tmp_path / "models", tmp_path / "cache", kind)


def engine_site(tmp_path: Path) -> Path:
    """An engine environment: packages as importlib and the version files tell them."""
    site = tmp_path / "site"
    files = {
        "vllm/__init__.py": "raise RuntimeError('must not be imported')\n",
        "vllm/_version.py": "__version__ = '0.23.0'\n__commit_id__ = 'gabc123'\n",
        "torch/__init__.py": "raise RuntimeError('must not be imported')\n",
        "torch/version.py": "cuda = '13.0'\ngit_version = 'ffff'\n",
        "vllm-0.23.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.23.0\n",
    }
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return site


class FakeGpu:
    def facts(self) -> dict[str, Any]:
        return {
            "name": "NVIDIA H100",
            "memory_total_mib": 81559,
            "power_limit_mw": 350_000,
            "ecc": None,
            "driver": "580",
        }

    def idle(self) -> dict[str, Any]:
        return {"seconds": 3.0, "counter_mw": 75_000}


def test_engine_machine_and_program(config: Config, tmp_path: Path) -> None:
    given = replace(host(tmp_path, str(engine_site(tmp_path))), cpus=frozenset({0, 2, 3}))
    found = collect_provenance(config, given, FakeGpu())  # type: ignore[arg-type]
    assert json.loads(json.dumps(found)) == found
    engine = found["engine"]
    assert (engine["version"], engine["commit"], engine["torch_cuda"]) == ("0.23.0", "gabc123", "13.0")
    assert engine["packages"]["vllm"] == "0.23.0"
    assert "eager-cost-step-trace" in engine["packages"]
    assert engine["simulated"] is False
    assert engine["environment"]["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert "CAMPAIGN_RUN" not in engine["environment"]
    assert found["gpu"]["name"] == "NVIDIA H100"
    assert found["gpu"]["idle"]["counter_mw"] == 75_000
    locks = [found[part]["lock_sha256"] for part in ("engine", "runner")]
    lists = [CAMPAIGN.parent / "requirements" / name for name in ("engine.txt", "run.txt")]
    assert locks == [hashlib.sha256(path.read_bytes()).hexdigest() for path in lists]
    assert found["machine"]["cpus_logical"] > 0
    assert found["machine"]["boot_id"]
    assert found["machine"]["cpus_given"] == "0,2-3"
    assert found["runner"]["python"]
    assert found["campaign"]["file_sha256"] == hashlib.sha256(CAMPAIGN.read_bytes()).hexdigest()


def test_the_first_of_two_packages_of_a_name_counts(config: Config, tmp_path: Path) -> None:
    shadow = tmp_path / "shadow" / "vllm-9.9.dist-info"
    shadow.mkdir(parents=True)
    (shadow / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n")
    found = collect_provenance(config, host(tmp_path, str(engine_site(tmp_path)), str(shadow.parent)), None)
    assert found["engine"]["packages"]["vllm"] == "0.23.0"


def test_must_agree_repeats_the_values(config: Config, tmp_path: Path) -> None:
    site = str(engine_site(tmp_path))
    one = collect_provenance(config, host(tmp_path, site), FakeGpu())["must_agree"]  # type: ignore[arg-type]
    assert tuple(one) == MUST_AGREE
    assert (one["gpu.name"], one["gpu.ecc"], one["engine.commit"]) == ("NVIDIA H100", None, "gabc123")
    elsewhere = EngineHost(sys.executable, (site,), tmp_path / "other", tmp_path / "other-cache", "vllm")
    assert collect_provenance(config, elsewhere, FakeGpu())["must_agree"] == one  # type: ignore[arg-type]
    (Path(site) / "vllm-0.23.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.23.0.post1\n")
    changed = collect_provenance(config, host(tmp_path, site), FakeGpu())["must_agree"]  # type: ignore[arg-type]
    assert {key for key in one if one[key] != changed[key]} == {"engine.packages_sha256"}


def test_without_a_gpu_its_facts_are_null(config: Config, tmp_path: Path) -> None:
    found = collect_provenance(config, host(tmp_path, str(engine_site(tmp_path))), None)
    assert found["gpu"] is None
    assert found["machine"]["cpus_given"] == cpu_list(os.sched_getaffinity(0))
    assert found["must_agree"]["gpu.name"] is None


def test_the_stand_in_is_called_simulated_and_asked_nothing(config: Config, tmp_path: Path) -> None:
    engine = config.engine.model_copy(update={"kind": "stand-in"})
    simulated = config.model_copy(update={"engine": engine})
    found = collect_provenance(simulated, host(tmp_path, python="/no/python", kind="stand-in"), None)
    assert found["engine"]["simulated"] is True
    assert "packages" not in found["engine"]


def test_model_files_by_hash_size_and_blob(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "HASHED_WHOLE_BYTES", 10)
    (model := next(iter(config.models.values())))
    folder, blobs = tmp_path / "models" / model.directory, tmp_path / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "copied.safetensors").write_bytes(bytes(11))
    (blobs / ("ab" * 32)).write_bytes(bytes(12))
    (folder / "linked.safetensors").symlink_to(blobs / ("ab" * 32))
    found = collect_provenance(config, host(tmp_path, str(engine_site(tmp_path))), None)
    files = found["models"][model.name]["files"]
    assert files["config.json"] == {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    assert files["copied.safetensors"] == {"bytes": 11, "sha256": None}
    assert files["linked.safetensors"] == {"bytes": 12, "sha256": "ab" * 32}
    weights = {"dummy": "random weights", "hub": "as published"}[model.weights]
    assert found["models"][model.name]["weights"] == weights


@pytest.mark.parametrize("body", ["import sys; sys.exit('no such thing')", "print('not json')", "pass"])
def test_an_engine_python_that_cannot_answer_is_named(config: Config, tmp_path: Path, body: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{body}\n")
    python.chmod(0o755)
    with pytest.raises(PreflightError) as caught:
        collect_provenance(config, host(tmp_path, python=str(python)), None)
    assert str(python) in caught.value.message
    assert "--engine-python" in caught.value.hint


def test_an_engine_python_that_is_missing_is_named(config: Config, tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="/no/python"):
        collect_provenance(config, host(tmp_path, python="/no/python"), None)


def test_git_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "x@example.org")
    assert provenance._git(tmp_path, "status") is None
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    assert len(provenance._git(tmp_path, "rev-parse", "HEAD") or "") == 40
    assert provenance._git(tmp_path, "status", "--porcelain") == ""
    (tmp_path / "new").touch()
    assert provenance._git(tmp_path, "status", "--porcelain")


def test_a_program_that_is_not_there_says_nothing() -> None:
    assert provenance._said("no-such-program-anywhere", "--version") is None
    assert provenance._said(sys.executable, "-c", "raise SystemExit(3)") is None
    assert provenance._said(sys.executable, "-c", "print('CLI 1.17.8')") == "CLI 1.17.8"
