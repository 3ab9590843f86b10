"""Child processes of a run: each in its own session, its output in a file, and none outlives the runner.

A process is found again after a crash by the variable CAMPAIGN_RUN in its environment. Three things end it:
`Process.stop` (the ordinary way), its guard (a waiting `sh` that ends the group when the runner's end of a
pipe closes, so also after SIGKILL of the runner), and `kill_marked` at the next start of the campaign.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from statistics import fmean

import psutil

from analysis.formats.run_record import ContainerFacts
from runner.errors import PreflightError

MARKER_VARIABLE = "CAMPAIGN_RUN"
FOREIGN = ("PYTHON", "VIRTUAL_ENV", "VLLM_", "CAMPAIGN_")  # beginnings of variables that an engine gets from us alone
POLL_S = 0.02
# below Linux' ephemeral range: no outgoing connection takes the port before the engine does
PORTS = (20000, 32767)

# Waits for "done" on stdin. End of file instead means that the runner died: end the process group.
GUARD = """
read -r line && [ "$line" = done ] && exit 0
kill -s TERM -- "-$1" 2>/dev/null || exit 0
n=0
while [ $n -lt 10 ] && kill -s 0 -- "-$1" 2>/dev/null; do sleep 0.5; n=$((n+1)); done
kill -s KILL -- "-$1" 2>/dev/null
"""


def free_port() -> int:
    """A random TCP port on which nothing listens, not even a leftover server with SO_REUSEPORT."""
    for _ in range(200):
        port = random.SystemRandom().randint(*PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise PreflightError(f"no free TCP port found between {PORTS[0]} and {PORTS[1]}", "end programs that hold ports")


def cpu_shares(cpus: Set[int] | None) -> tuple[float, float | None]:
    """Per cent of the time since this thread's last call in which these CPUs (None: all) were busy, and in which the
    host of this virtual machine gave them to others (None: the system does not tell)."""
    all_shares = psutil.cpu_times_percent(percpu=True)
    shares = [share for cpu, share in enumerate(all_shares) if cpus is None or cpu in cpus]
    busy = fmean(100 - share.idle - getattr(share, "iowait", 0.0) for share in shares)
    stolen = [share.steal for share in shares if hasattr(share, "steal")]
    return round(busy, 2), round(fmean(stolen), 2) if stolen else None


class Child(ABC):
    """An engine or client that was started, its output in `log`. `exec_ns`: CLOCK_MONOTONIC just before its start."""

    exec_ns: int

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.log = name, log

    @abstractmethod
    def poll(self) -> int | None:
        """Exit status, or None while it runs."""

    @abstractmethod
    def stop(self, grace_s: float) -> None:
        """End it and all that it started, politely for up to `grace_s`."""

    def facts(self) -> ContainerFacts | None:
        """Of its container, after `stop`; None if it had none."""
        return None

    def log_bytes(self) -> bytes:
        return self.log.read_bytes()

    def last_line(self) -> str:
        """The last non-empty line of its output (at most 400 characters)."""
        lines = self.log_bytes()[-8192:].decode(errors="replace").replace("\r", "\n").split("\n")
        return next((line.strip()[-400:] for line in reversed(lines) if line.strip()), "(no output)")


class Process(Child):
    """A child process of this program."""

    stdin = subprocess.DEVNULL  # or a pipe

    def __init__(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], log: Path, cpus: Set[int] | None = None
    ) -> None:
        """Start `argv` on `cpus`, its output appended to `log`.

        Raises PreflightError when the program cannot be started.
        """
        super().__init__(name, log)
        self._guard: subprocess.Popen[bytes] | None = None
        with log.open("ab") as output:
            self.exec_ns = time.monotonic_ns()
            try:
                self._popen = subprocess.Popen(
                    argv,
                    env=environment,
                    cwd="/",  # nothing of the caller's folder gets onto the engine's import path
                    stdin=self.stdin,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                message = f"cannot start the {name}: {argv[0]}: {error.strerror}"
                raise PreflightError(message, "check --engine-python") from error
        self.pid = self._popen.pid
        try:
            if cpus is not None:  # in time: the child's threads inherit it, and it has none yet
                os.sched_setaffinity(self.pid, cpus)
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", GUARD, "guard", str(self.pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", "/bin:/usr/bin")},
            )
        except BaseException:
            self.stop(0.0)
            raise

    def poll(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._popen.poll()

    def group_alive(self) -> bool:
        """Whether any member of its process group still runs (zombies do not)."""
        self._popen.poll()
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getpgid(pid) == self.pid and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    return True
        return False

    def stop(self, grace_s: float) -> None:
        """SIGTERM to the group, wait up to `grace_s`, SIGKILL; the latter also when interrupted."""
        try:
            if grace_s > 0:
                self._signal(signal.SIGTERM)
                self._wait(grace_s)
        finally:
            self._signal(signal.SIGKILL)
            self._wait(10.0)
            if self._popen.stdin is not None:
                with contextlib.suppress(OSError):
                    self._popen.stdin.close()
            if self._guard is not None:
                with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):  # ValueError: stopped before
                    self._guard.communicate(b"done\n", timeout=2.0)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.group_alive() and time.monotonic() < deadline:
            time.sleep(POLL_S)


def marked(marker: str) -> list[psutil.Process]:
    """Processes whose CAMPAIGN_RUN begins with `marker`, this one excepted."""
    assert marker, "an empty one would be everybody's"
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER_VARIABLE, "").startswith(marker) and process.pid != os.getpid():
                found.append(process)
    return found


def kill_marked(marker: str, timeout_s: float = 20.0) -> list[int]:
    """SIGKILL the processes that carry the marker until none is left or the time is up; returns their ids."""
    killed: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while (found := marked(marker)) and time.monotonic() < deadline:
        for process in found:
            killed.add(process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_S)
    return sorted(killed)
