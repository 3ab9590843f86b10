"""`campaign doctor` and `campaign fetch`: each check fails on what it exists for, and says what mends it."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from runner import doctor, processes
from runner.cli import main
from runner.config import load_config
from runner.doctor import Finding, Place, examine
from runner.errors import PreflightError
from runner.launcher import EngineHost
from runner.plan import build_plan
from runner.store import Store
from runner.workers import GpuOptions

ROOT = Path(__file__).parent.parent
Usage = namedtuple("Usage", "total used free")


class FakeGpu:
    def __init__(self, driver: str = "580.65.06", used_mib: int = 3) -> None:
        self._driver, self._used_mib = driver, used_mib

    def facts(self) -> dict[str, Any]:
        return {"driver": self._driver, "index": 0, "name": "NVIDIA H100", "processes": [4711]}

    def identity(self) -> Any:
        return type("Identity", (), {"name": "NVIDIA H100", "uuid": "GPU-1"})

    def memory_used_mib(self) -> int:
        return self._used_mib

    def memory(self) -> Any:
        return type("Memory", (), {"usable": 80 * 2**30})


def place(tmp_path: Path, **engine: Any) -> Place:
    config = load_config(ROOT / "campaign.toml")
    config = config.model_copy(update={"engine": config.engine.model_copy(update=engine)})
    host = EngineHost(sys.executable, (), tmp_path / "models", tmp_path / "cache", config.engine.kind)
    return Place(config, build_plan(config, ["published"]), host, tmp_path / "results", GpuOptions())


def finding(name: str, where: Place) -> Finding:
    return next(found for found in examine(where) if found.name == name)


@pytest.mark.parametrize(
    ("gpu", "found", "mend"),
    [
        (lambda: FakeGpu(driver="550.54.14"), "driver 550.54.14 is too old", "install 580"),
        (lambda: FakeGpu(used_mib=40_000), "40000 MiB of GPU 0 are in use, by processes [4711]", "nvidia-smi"),
    ],
)
def test_an_old_driver_and_a_busy_gpu_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: Callable[[], FakeGpu], found: str, mend: str
) -> None:
    monkeypatch.setattr(GpuOptions, "open", lambda *_: [gpu()])
    said = finding("GPU", place(tmp_path))
    assert said.state == "FAILED"
    assert found in said.found
    assert mend in said.mend


def test_a_good_gpu_is_ok_and_a_mig_slice_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuOptions, "open", lambda *_: [FakeGpu()])
    assert finding("GPU", place(tmp_path)).state == "ok"

    def slice_(*_: Any) -> Any:
        raise PreflightError("GPU 0 is in MIG mode", "switch it off with `nvidia-smi -i 0 -mig 0`")

    monkeypatch.setattr(GpuOptions, "open", slice_)
    assert "-mig 0" in finding("GPU", place(tmp_path)).mend


def test_each_gpu_is_opened_once_for_all_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[FakeGpu] = []
    asked: list[str] = []

    def open_gpus(*_: Any) -> list[FakeGpu]:
        opened.append(FakeGpu())
        return opened[-1:]

    def ask(_: Any, *__: Any, gpu_uuid: str) -> None:
        asked.append(gpu_uuid)

    docker = type("Docker", (), {"version": "29.0", "host_path": lambda *_: "", "ask": ask})()
    monkeypatch.setattr(GpuOptions, "open", open_gpus)
    monkeypatch.setattr(EngineHost, "with_containers", lambda self, *_, **__: replace(self, containers=docker))
    monkeypatch.setattr(EngineHost, "check", lambda *_: None)
    found = {one.name: one.state for one in examine(place(tmp_path, launcher="container"))}
    assert (found["GPU"], found["engine"], asked, len(opened)) == ("ok", "ok", ["GPU-1"], 1)


def test_a_missing_engine_and_a_missing_container_engine_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = place(tmp_path)
    said = finding("engine", where)
    assert "vLLM is not installed" in said.found
    assert "requirements/engine.txt" in said.mend
    said = finding("models", where)  # a row of their own: without the engine, too
    assert (said.state, "make_models.py" in said.mend) == ("FAILED", True)
    for name in (*where.plan.models, "tok"):
        folder = where.host.models / (where.config.models[name].directory if name != "tok" else "tok")
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert finding("models", where).found == f"32b, 7b in {where.host.models}"
    host = EngineHost(".venv-vllm/bin/python", (), tmp_path, tmp_path, "vllm")
    said = finding("engine", Place(where.config, where.plan, host, where.results, where.gpus))
    assert said.found == "--engine-python .venv-vllm/bin/python: there is no such program"
    assert "requirements/engine.txt" in said.mend
    host = EngineHost(sys.executable, (), tmp_path, tmp_path, "vllm", frozenset(range(5000, 5099)))
    said = finding("engine", Place(where.config, where.plan, host, where.results, where.gpus))
    assert said.found == "--cpus: this process may not use CPU 5000-5098"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    said = finding("engine", place(tmp_path, launcher="container"))
    assert "no container engine answers" in said.found
    assert "socket" in said.mend


@pytest.mark.parametrize(
    ("version", "state"), [("2.27.1", "FAILED"), ("2.40.3-3", "ok"), ("v5.0.0", "ok"), ("", "FAILED")]
)
def test_the_version_of_compose_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, state: str
) -> None:
    command = tmp_path / "docker"
    command.write_text(f"#!/bin/sh\necho {version}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    said = finding("compose", place(tmp_path, launcher="container"))
    assert said.state == state
    assert bool(said.mend) == (state == "FAILED")
    assert finding("compose", place(tmp_path)).state == "not checked"


def test_a_full_disk_is_found_with_weights_still_to_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = place(tmp_path)
    assert where.config.models["32b"].estimate.weights_gib > 60
    for free_gib, state in ((1, "FAILED"), (50, "ok")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free_gib: Usage(0, 0, free * 2**30))
        assert finding("disk", where).state == state
    hub = tuple(model.model_copy(update={"weights": "hub"}) for model in where.config.model)
    config = where.config.model_copy(update={"model": hub})
    said = finding("disk", Place(config, where.plan, where.host, where.results, where.gpus))
    assert said.state == "FAILED"
    assert "50.0 GiB free" in said.found
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(0, 0, 3 * 2**20))
    demo = load_config(ROOT / "examples/demo.toml")
    said = finding("disk", Place(demo, build_plan(demo, ["published"]), where.host, where.results, where.gpus))
    assert re.search(r": 3 MiB free, \d{3} MiB needed$", said.found), said.found


def test_the_results_folder_is_looked_at_and_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = place(tmp_path)
    root, config = where.results, where.config
    assert "results, new" in finding("results", where).found
    assert not root.exists()
    with Store.open(root, config):
        assert "in use by another campaign" in finding("results", where).found
    before = {path: path.stat().st_mtime_ns for path in (root, *root.rglob("*"))}
    assert "begun with this configuration" in finding("results", where).found
    other = config.model_copy(update={"engine": config.engine.model_copy(update={"max_model_len": 8192})})
    said = finding("results", Place(other, where.plan, where.host, root, where.gpus))
    assert (said.state, "changed: engine.max_model_len" in said.found) == ("FAILED", True)
    assert before == {path: path.stat().st_mtime_ns for path in (root, *root.rglob("*"))}
    monkeypatch.setattr(os, "access", lambda path, _: path != root / "runs")
    said = finding("results", where)
    assert (said.state, f"cannot write in {root / 'runs'}" in said.found) == ("FAILED", True)
    assert "--results" in said.mend


def test_a_results_folder_that_is_a_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    assert finding("results", place(tmp_path)).state == "FAILED"


def test_what_is_measured_never_goes_into_the_folder_that_ships() -> None:
    for name in ("run", "doctor", "status"):
        (option,) = (option for option in main.commands[name].params if option.name == "results")
        assert option.default == "results/here"


def test_a_slow_clock_source_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "clock"
    for text, state in (("tsc\n", "ok"), ("acpi_pm\n", "FAILED")):
        source.write_text(text)
        monkeypatch.setattr(doctor, "CLOCK", source)
        assert finding("clock", place(tmp_path)).state == state


def test_taken_ports_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding("port", place(tmp_path)).state == "ok"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        monkeypatch.setattr(processes, "PORTS", (other.getsockname()[1],) * 2)
        said = finding("port", place(tmp_path))
    assert said.state == "FAILED"
    assert "end programs that hold ports" in said.mend


def test_several_gpus_are_each_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuOptions, "open", lambda *_: [FakeGpu(), FakeGpu()])
    assert "2 of them, a worker each (--workers 1" in finding("GPU", place(tmp_path)).found
    monkeypatch.setattr(GpuOptions, "open", lambda *_: [FakeGpu(), FakeGpu(used_mib=9000)])
    assert "9000 MiB" in finding("GPU", place(tmp_path)).found


def test_the_command_ends_with_2_where_a_check_failed(tmp_path: Path) -> None:
    options = ["--config", str(ROOT / "examples/demo.toml"), "--cache", str(tmp_path), "--results", str(tmp_path / "r")]
    good = CliRunner().invoke(main, ["doctor", *options])
    assert good.exit_code == 0, good.output
    bad = CliRunner().invoke(main, ["doctor", "--config", str(ROOT / "campaign.toml"), "--cache", str(tmp_path)])
    assert bad.exit_code == 2
    assert "next: " in bad.output
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--results", "other"], "was begun with another configuration"), (["--gpu", "99"], "GPU 99 is not there")],
)
def test_what_is_cheap_to_see_is_told_before_the_engine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    def no_such_gpu(options: GpuOptions, _: Any) -> list[FakeGpu]:
        if options.gpu:
            raise PreflightError(f"GPU {options.gpu} is not there", "")
        return []

    monkeypatch.setattr(GpuOptions, "open", no_such_gpu)
    monkeypatch.chdir(tmp_path)
    with Store.open(tmp_path / "other", load_config(ROOT / "examples/demo.toml")):
        pass
    words = ["run", "--config", str(ROOT / "campaign.toml"), "--cache", str(tmp_path / "cache")]
    assert "vLLM is not installed" in CliRunner().invoke(main, words).stderr
    assert message in CliRunner().invoke(main, [*words, *options]).stderr


def test_a_command_that_is_stopped_at_once_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("runner.cli.render_plan", interrupted)
    done = CliRunner().invoke(main, ["plan", "--config", str(ROOT / "campaign.toml")])
    assert (done.exit_code, done.stderr) == (130, "stopped at once, before it was done; run it again\n")


HUB = """
import pathlib, types
FILES = {"config.json": (b"{}", None), "model.safetensors": (b"weights", True), "README.md": (b"no", None)}
def snapshot_download(repository, *, revision, local_dir, allow_patterns):
    assert revision == "a09a35458c702b33eeacc393d103063234e8bc28"
    folder = pathlib.Path(local_dir); folder.mkdir(parents=True, exist_ok=True)
    for name, (content, _) in FILES.items():
        if any(pathlib.Path(name).match(p) for p in allow_patterns):
            (folder / name).exists() or (folder / name).write_bytes(content)
class HfApi:
    def model_info(self, repository, *, revision, files_metadata):
        S = types.SimpleNamespace
        lfs = S(sha256="SHA256")
        return S(siblings=[S(rfilename=n, blob_id="9e26dfeeb6e641a33dae4961196235bdb965b21b", lfs=lfs if big else None)
                           for n, (_, big) in FILES.items()])
"""


def test_fetch_downloads_the_revision_and_checks_every_file(tmp_path: Path) -> None:
    (tmp_path / "huggingface_hub.py").write_text(HUB.replace("SHA256", hashlib.sha256(b"weights").hexdigest()))
    model = load_config(ROOT / "campaign.toml").models["7b"]
    host = EngineHost(sys.executable, (str(tmp_path),), tmp_path / "models", tmp_path / "cache", "vllm")
    host.fetch(model)
    folder = tmp_path / "models" / model.directory
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(PreflightError, match="was not fetched") as caught:
        host.fetch(model)
    assert "HF_TOKEN" in caught.value.hint


def test_fetch_leaves_models_with_random_weights() -> None:
    said = CliRunner().invoke(main, ["fetch", "--config", str(ROOT / "campaign.toml")])
    assert said.exit_code == 0, said.output
    assert 'weights = "dummy"' in said.output
