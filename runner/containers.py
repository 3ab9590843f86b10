"""Servers in sibling containers: a fresh one from the pinned image for every start, through Docker's API.

A sibling shares this program's network (so that the engine stays on the loopback interface), sees models, caches and
the run's folder under the paths they have here, and runs as this user without capabilities. It carries the run's marker
as a label, by which it is found and removed after a crash.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.types

from analysis.formats.failure import classify_failure
from analysis.formats.run_record import ContainerFacts
from runner.errors import EngineFailed, PreflightError
from runner.launcher import ENGINE_SIDE, EngineHost
from runner.processes import FOREIGN, Child

LABEL = "eager-cost.run"
API_TIMEOUT_S = 60.0
REMOVE_WAIT_S = 60.0  # for a container that the engine is still making, or still ending
END_TRIES = 5  # to hear of a server's end, when the engine does not answer
SHM_BYTES = 2 * 2**30
BYTECODE_TIMEOUT_S = 1800.0
_COMPILE = "import compileall as c, sys; [c.compile_dir(p, maxlevels=20, quiet=2, workers=0) for p in sys.path if p]"
API_ERRORS = (docker.errors.DockerException, OSError)  # requests' errors are OSErrors
INSTEAD = "or use --launcher process, which needs no container engine"


@contextlib.contextmanager
def _api(doing: str) -> Iterator[None]:
    """Docker's errors as EngineFailed, classified by what the engine says."""
    try:
        yield
    except API_ERRORS as error:
        said = str(getattr(error, "explanation", None) or error)
        failure_class, hint = classify_failure(said) or ("container_failed", "")
        raise EngineFailed(f"{doing}: {said}", failure_class, hint) from error


def own_container_id(mountinfo: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Of the container this program runs in, by the files that Docker mounts into every one; None on a host."""
    found = re.search(r"/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf) ", mountinfo.read_text())
    return found[1] if found else None


def open_containers(image: str, *, pull: bool = True) -> Containers:
    """The engine that DOCKER_HOST (or the usual socket) leads to, with `image` there (pulled if need be and allowed).

    Raises PreflightError when no engine answers, it cannot do what is needed, or the image is not to be had.
    """
    try:
        client = docker.from_env(timeout=API_TIMEOUT_S)
        version, info = client.version(), client.info()
    except API_ERRORS as error:
        hint = f"start Docker, mount its socket and let this user reach it (group docker), {INSTEAD}"
        raise PreflightError(f"no container engine answers: {error}", hint) from error
    podman = any("podman" in part.get("Name", "").lower() for part in version.get("Components") or ())
    if podman or any("rootless" in option for option in info.get("SecurityOptions") or ()):
        raise PreflightError(
            f"the container engine is {'Podman' if podman else 'rootless'}: its siblings cannot have one GPU by UUID, "
            "and this one's paths and users",
            f"use Docker as root (`docker context use default`), {INSTEAD}",
        )
    own_id, exact = own_container_id(), re.sub(r":[^/:@]+(?=@)", "", image)  # a digest says more than the tag before it
    try:
        own = client.containers.get(own_id).attrs if own_id else None
        image_attrs = _image(client, exact, pull)
    except docker.errors.NotFound as error:
        hint = f"`docker pull {exact}`, or `docker load` it (see DOCKER_HOST, engine.image and --image), {INSTEAD}"
        raise PreflightError(str(error.explanation or error), hint) from error
    except API_ERRORS as error:
        hint = "check the network, or carry it over: `docker save`, `docker load`, --image"
        raise PreflightError(f"engine.image {image}: {error}", hint) from error
    return Containers(client, image, image_attrs, own, str(version.get("Version")))


def _image(client: Any, exact: str, pull: bool) -> dict[str, Any]:
    try:
        found = client.images.get(exact)
    except docker.errors.ImageNotFound:
        if not pull or exact.startswith("sha256:") or not {"@", ":"} & set(exact.rpartition("/")[2]):
            raise  # an image id, or a name without a version, cannot be pulled
        _say(f"pulling {exact}, which can take long")
        found = client.images.pull(exact)
    return dict(found.attrs)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Containers:
    """A container engine, the image of the servers, and (`own`) the inspected container that this program runs in."""

    client: Any
    reference: str
    image: dict[str, Any]
    own: dict[str, Any] | None
    version: str

    def facts(self) -> dict[str, Any]:
        """For the provenance record."""
        return {
            "image": self.reference,
            "image_id": self.image["Id"],
            "image_digests": sorted(self.image.get("RepoDigests") or ()),
            "base": (self.image["Config"].get("Labels") or {}).get("org.opencontainers.image.base.name"),
            "engine_version": self.version,
            "campaign_image_id": self.own["Image"] if self.own else None,
        }

    def host_path(self, path: Path) -> str:
        """Where the engine's host has what is `path` here. PreflightError if it has it nowhere."""
        if self.own is None:
            return str(path)
        above = [mount for mount in self.own["Mounts"] if path.is_relative_to(mount["Destination"])]
        if not above:
            raise PreflightError(f"{path} is on no volume, so no other container can see it", "mount a folder there")
        mount = max(above, key=lambda mount: len(mount["Destination"]))
        return str(Path(mount["Source"]) / path.relative_to(mount["Destination"]))

    def _mount(self, path: Path, *, source: Path | None = None, read_only: bool = False) -> Any:
        """`path` of the sibling is `source` (default: `path`) of here."""
        return docker.types.Mount(str(path), self.host_path(source or path), "bind", read_only=read_only)

    def _create(
        self, argv: Sequence[str], environment: Mapping[str, str], marker: str, gpu_uuid: str | None = None, **more: Any
    ) -> Any:
        """A container of the image, not yet started. The image's own variables for vLLM and Python do not get in."""
        gpu = docker.types.DeviceRequest(device_ids=[gpu_uuid], capabilities=[["gpu"]])
        names = (variable.partition("=")[0] for variable in self.image["Config"].get("Env") or ())
        unset = [f"-u{name}" for name in names if name.startswith(FOREIGN) and name not in environment]
        return self.client.containers.create(
            self.image["Id"],
            list(argv),
            entrypoint=["/usr/bin/env", *unset],
            environment=dict(environment),
            labels={LABEL: marker},
            device_requests=[gpu] if gpu_uuid else [],
            user=f"{os.getuid()}:{os.getgid()}",
            working_dir="/",
            init=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            stop_signal="SIGTERM",
            healthcheck={"test": ["NONE"]},
            log_config=docker.types.LogConfig(type="json-file", config={"max-size": "1g"}),
            **more,
        )

    def compile_bytecode(self, python: str, environment: Mapping[str, str], cache: Path) -> None:
        """Fill PYTHONPYCACHEPREFIX (below `cache`) for the image's packages, once: a fresh container keeps none, and
        every measured start would compile thousands of modules anew. Raises EngineFailed."""
        done = cache / f"bytecode-{self.image['Id'].removeprefix('sha256:')[:12]}"
        if not done.exists():
            _say(f"compiling the Python byte code of {self.reference}, once: some minutes")
            self.ask([python, "-c", _COMPILE], environment, BYTECODE_TIMEOUT_S, mounts=[self._mount(cache)])
            done.touch()

    def ask(self, argv: Sequence[str], environment: Mapping[str, str], timeout_s: float, **more: Any) -> str:
        """Standard output of a short command in the image, offline. `more`: of `_create`. Raises EngineFailed."""
        marker = f"ask:{os.getpid()}.{time.monotonic_ns()}"
        try:
            with _api(f"asking {self.reference}"):
                container = self._create(argv, environment, marker, network_mode="none", **more)
                container.start()
                status = container.wait(timeout=timeout_s)["StatusCode"]
                output, error = (container.logs(stdout=out, stderr=not out).decode() for out in (True, False))
        finally:
            self.remove(marker)
        if status:
            raise EngineFailed(f"asking {self.reference}: {error.strip() or f'status {status}'}", "container_failed")
        return str(output)

    def remove(self, marker: str) -> list[str]:
        """Remove the containers whose label begins with `marker`, half-made ones too; returns their names."""
        removed: list[str] = []
        deadline = time.monotonic() + REMOVE_WAIT_S
        while True:
            with contextlib.suppress(*API_ERRORS):  # one that is being removed already, or an engine out of breath
                listed = self.client.api.containers(all=True, filters={"label": LABEL})
                found = [container for container in listed if container["Labels"][LABEL].startswith(marker)]
                if not found:
                    return removed
                for container in found:
                    self.client.api.remove_container(container["Id"], v=True, force=True)
                    removed.append(container["Names"][0].lstrip("/"))
            if time.monotonic() > deadline:
                hint = f"`docker ps -a --filter label={LABEL}`, restart Docker"
                raise PreflightError("containers of earlier runs cannot be removed", hint)
            time.sleep(0.2)

    def serve(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        marker: str,
        host: EngineHost,
        gpu_uuid: str | None,
    ) -> EngineContainer:
        """Start a server with its log in `log`'s folder, which it may write. Raises EngineFailed.

        The plug-in is copied there and mounted read-only in its place. The caller removes by `marker` whatever happens.
        """
        models, cache, cpus, folder = host.models, host.cache, host.cpus, log.parent
        copy = folder / ENGINE_SIDE.name
        shutil.copytree(ENGINE_SIDE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        with contextlib.ExitStack() as failed:
            failed.callback(shutil.rmtree, copy)
            (cache / "home").mkdir(exist_ok=True)
            mounts = [self._mount(ENGINE_SIDE, source=copy, read_only=True), self._mount(cache), self._mount(folder)]
            if models.is_dir():
                mounts.append(self._mount(models, read_only=True))
            home = {"HOME": str(cache / "home"), "USER": "campaign", "LOGNAME": "campaign"}
            with _api("making the engine's container"):
                container = self._create(
                    argv,
                    home | dict(environment),
                    marker,
                    mounts=mounts,
                    network_mode=f"container:{self.own['Id']}" if self.own else "host",
                    gpu_uuid=gpu_uuid,
                    cpuset_cpus=",".join(map(str, sorted(cpus))) if cpus else None,
                    shm_size=SHM_BYTES,
                )
            server = EngineContainer(container, self, log, copy)
            failed.pop_all()
        return server


class EngineContainer(Child):
    """A server in a container. `exec_ns` is just before its start, so a cold start includes the container's own."""

    def __init__(self, container: Any, engine: Containers, log: Path, plug_in: Path) -> None:
        super().__init__("engine", log)
        self._container, self._engine, self._plug_in = container, engine, plug_in
        self._status: int | None = None
        self.state: dict[str, Any] = {}
        self.exec_ns = time.monotonic_ns()
        with _api("starting the engine's container"):
            container.start()
        log.touch()
        self._follower = threading.Thread(target=self._follow, name="container log", daemon=True)
        self._follower.start()

    def _follow(self) -> None:
        """Its output into the log until it ends, then its exit status. Begun again where the stream breaks."""
        problem: Exception | None = None
        for attempt in range(END_TRIES):
            try:
                with self.log.open("wb") as output:
                    for chunk in self._container.logs(stream=True, follow=True):
                        output.write(chunk)
                        output.flush()
                self._status = int(self._container.wait(timeout=API_TIMEOUT_S)["StatusCode"])
                return
            except Exception as error:  # of four libraries; without this thread nobody would notice the server's end
                problem = error
                time.sleep(2**attempt / 2)
        with self.log.open("a", encoding="utf-8") as output:
            output.write(f"\ncampaign: lost the engine's container: {problem}\n")
        self._status = -1

    def poll(self) -> int | None:
        """Exit status, or None while it runs; -1 when it cannot be had."""
        return self._status

    def stop(self, grace_s: float) -> None:
        """SIGTERM, wait up to `grace_s`, SIGKILL; then its end state is read. The caller removes it."""
        with contextlib.suppress(*API_ERRORS):
            if self._status is None:
                self._container.stop(timeout=round(grace_s))
            self._follower.join(API_TIMEOUT_S)
            self._container.reload()
            self.state = self._container.attrs["State"]
        shutil.rmtree(self._plug_in, ignore_errors=True)

    def facts(self) -> ContainerFacts:
        """For the run record, after `stop`."""
        return ContainerFacts(
            id=self._container.id,
            image=self._engine.reference,
            image_id=self._engine.image["Id"],
            image_digests=tuple(sorted(self._engine.image.get("RepoDigests") or ())),
            exit_code=self.state.get("ExitCode"),
            oom_killed=self.state.get("OOMKilled"),
        )
