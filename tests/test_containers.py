"""The container launcher's own logic, on a fake of Docker's API; the real one is in tests/container."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import docker.errors
import pytest
import requests

from runner import containers
from runner.containers import LABEL, Containers, own_container_id
from runner.errors import EngineFailed, PreflightError
from runner.launcher import EngineHost

IMAGE = {"Id": "sha256:1", "RepoDigests": [], "Config": {"Env": ["VLLM_BUILD_COMMIT=x", "PATH=/bin", "VLLM_KNOWN=1"]}}
OWN = {
    "Id": "me",
    "Image": "sha256:2",
    "Mounts": [
        {"Destination": "/campaign/results", "Source": "/home/me/results"},
        {"Destination": "/campaign/results/here/cache", "Source": "/volumes/cache/_data"},
    ],
}


class FakeDocker:
    """As much of docker.DockerClient as the launcher uses. `create` fails as `failure` says, after it has made one."""

    def __init__(self, **options: Any) -> None:
        self.made: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self.info_, self.version_ = options.get("info", {}), options.get("version", {})
        self.containers = self.images = self.api = self
        self.pulled: list[str] = []
        self.busy = 0

    def version(self) -> dict[str, Any]:
        return {"Version": "28"} | self.version_

    def info(self) -> dict[str, Any]:
        return dict(self.info_)

    def create(self, *_: Any, **more: Any) -> Any:
        self.made.append({"Id": str(len(self.made)), "Names": ["/x"], "Labels": more["labels"], "more": more})
        if self.failure:
            raise self.failure
        return self

    def start(self) -> None:
        raise docker.errors.APIError("400", explanation='could not select device driver "nvidia" with capabilities')

    def __call__(self, **_: Any) -> list[dict[str, Any]]:
        return list(self.made)

    def remove_container(self, which: str, **_: Any) -> None:
        if self.busy:
            self.busy -= 1
            raise docker.errors.APIError("409", explanation="removal is already in progress")
        self.made = [c for c in self.made if c["Id"] != which]

    def get(self, name: str) -> Any:
        raise docker.errors.ImageNotFound("no such image", explanation=f"No such image: {name}")

    def pull(self, name: str) -> Any:
        self.pulled.append(name)
        return self

    attrs = IMAGE


def engine(client: FakeDocker, own: dict[str, Any] | None = OWN) -> Containers:
    client.api.containers = client
    return Containers(client, "vllm/vllm-openai", IMAGE, own, "28")


def opened(monkeypatch: pytest.MonkeyPatch, client: FakeDocker, image: str = "a@sha256:1") -> Containers:
    monkeypatch.setattr(docker, "from_env", lambda **_: client)
    return containers.open_containers(image)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"info": {"SecurityOptions": ["name=seccomp", "name=rootless"]}}, "rootless"),
        ({"version": {"Components": [{"Name": "Podman Engine"}]}}, "Podman"),
    ],
)
def test_engines_that_cannot_do_it_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PreflightError, match=message) as caught:
        opened(monkeypatch, FakeDocker(**options))
    assert "--launcher process" in caught.value.hint


def test_a_missing_engine_is_told_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(**_: Any) -> None:
        raise docker.errors.DockerException("Error while fetching server API version")

    monkeypatch.setattr(docker, "from_env", nobody)
    with pytest.raises(PreflightError, match="no container engine answers") as caught:
        containers.open_containers("x")
    assert "--launcher process" in caught.value.hint


def test_an_image_is_pulled_by_its_digest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeDocker()
    opened(monkeypatch, client, "host:5000/vllm/vllm-openai:v0.23.0@sha256:abc")
    assert client.pulled == ["host:5000/vllm/vllm-openai@sha256:abc"]


@pytest.mark.parametrize("image", ["sha256:abc", "local"])
def test_what_no_registry_can_give_is_not_pulled(monkeypatch: pytest.MonkeyPatch, image: str) -> None:
    client = FakeDocker()
    with pytest.raises(PreflightError, match="No such image"):
        opened(monkeypatch, client, image)
    assert client.pulled == []


def test_paths_of_the_host_are_those_of_the_deepest_mount() -> None:
    here = engine(FakeDocker())
    assert here.host_path(Path("/campaign/results/here/runs/x")) == "/home/me/results/here/runs/x"
    assert here.host_path(Path("/campaign/results/here/cache/vllm")) == "/volumes/cache/_data/vllm"
    assert engine(FakeDocker(), None).host_path(Path("/data")) == "/data"
    with pytest.raises(PreflightError, match="/campaign/models is on no volume"):
        here.host_path(Path("/campaign/models"))


def test_the_own_container_is_known_by_its_mounts(tmp_path: Path) -> None:
    found = tmp_path / "mountinfo"
    found.write_text(f"1 2 254:0 /root/containers/{'ab' * 32}/hostname /etc/hostname rw - ext4 /dev/vda rw\n")
    assert own_container_id(found) == "ab" * 32
    found.write_text("1 2 254:0 / / rw - ext4 /dev/vda rw\n")
    assert own_container_id(found) is None


def serve(client: FakeDocker, tmp_path: Path) -> None:
    own = {"Id": "me", "Image": "i", "Mounts": [{"Destination": str(tmp_path), "Source": "/host"}]}
    for name in ("plug_in", "cache", "run"):
        (tmp_path / name).mkdir(exist_ok=True)
    host = EngineHost("python3", (), tmp_path / "models", tmp_path / "cache", "vllm", frozenset({2, 1}))
    words: tuple[Any, ...] = (["python3"], {"VLLM_KNOWN": "0"}, tmp_path / "run/server.log", "store:run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(containers, "ENGINE_SIDE", tmp_path / "plug_in")
        engine(client, own).serve(*words, host, "GPU-1")


def test_a_server_has_one_gpu_no_privilege_and_none_of_the_images_variables(tmp_path: Path) -> None:
    client = FakeDocker()
    with pytest.raises(EngineFailed, match="could not select device driver") as caught:
        serve(client, tmp_path)
    assert caught.value.failure_class == "container_runtime_missing"
    more = client.made[0]["more"]
    assert more["entrypoint"] == ["/usr/bin/env", "-uVLLM_BUILD_COMMIT"]
    assert more["environment"]["VLLM_KNOWN"] == "0"
    assert more["device_requests"][0]["DeviceIDs"] == ["GPU-1"]
    assert more["cpuset_cpus"] == "1,2"
    assert more["network_mode"] == "container:me"
    assert more["user"] == f"{os.getuid()}:{os.getgid()}"
    assert more["cap_drop"] == ["ALL"]
    assert more["labels"] == {LABEL: "store:run"}
    mounts = {m["Target"]: (m["Source"], m["ReadOnly"]) for m in more["mounts"]}
    assert mounts == {
        str(tmp_path / "plug_in"): ("/host/run/plug_in", True),
        str(tmp_path / "cache"): ("/host/cache", False),
        str(tmp_path / "run"): ("/host/run", False),
    }
    assert not (tmp_path / "run/plug_in").exists()


def test_a_container_made_by_a_call_that_timed_out_is_removed(tmp_path: Path) -> None:
    client = FakeDocker()
    client.failure = requests.ReadTimeout("read timeout=60")
    with pytest.raises(EngineFailed, match="read timeout") as caught:
        serve(client, tmp_path)
    assert caught.value.failure_class == "container_failed"
    client.made.append({"Id": "other", "Names": ["/other"], "Labels": {LABEL: "another:run"}})
    client.busy = 2
    assert engine(client).remove("store:") == ["x"]
    assert [c["Id"] for c in client.made] == ["other"]


def test_byte_code_is_compiled_once_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(Containers, "ask", lambda _, argv, *more, **options: asked.append((argv[0], more, options)))
    for _ in range(2):
        engine(FakeDocker(), None).compile_bytecode("python3", {"PYTHONPYCACHEPREFIX": "x"}, tmp_path)
    ((python, _, options),) = asked
    assert python == "python3"
    assert options["mounts"][0]["Target"] == str(tmp_path)


def test_containers_that_cannot_be_removed_end_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeDocker()
    client.made.append({"Id": "x", "Names": ["/x"], "Labels": {LABEL: "store:run"}})
    client.busy = 10**9
    clock = itertools.count(step=20)
    monkeypatch.setattr(containers.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(containers.time, "sleep", lambda _: None)
    with pytest.raises(PreflightError, match="cannot be removed"):
        engine(client).remove("store:")
