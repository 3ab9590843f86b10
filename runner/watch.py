"""Waiting during a run: every wait also notices a stop request, a dead engine or client, a silent start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from analysis.formats.failure import classify_failure, root_causes
from analysis.formats.server_log import parse_server_log
from runner.errors import EngineFailed
from runner.processes import POLL_S, Process

T = TypeVar("T")


class Stopped(Exception):
    """A stop was requested (signal). Nothing of the run is left running; its folder is half-written."""


def death(process: Process, doing: str, fallback: str) -> EngineFailed:
    """What a process that ended by itself tells of why; `fallback` is the class if its log does not."""
    text = process.log_bytes().decode(errors="replace")
    found = classify_failure(text)
    causes = root_causes(text)
    reason = causes[-1] if causes else process.last_line()
    return EngineFailed(
        f"the {process.name} ended with status {process.poll()} while {doing}: {reason}",
        found[0] if found else fallback,
        found[1] if found else "see its log in the run's folder",
    )


class Watch:
    """The processes of a run, looked at in every wait. `doing` is the phase, for messages."""

    def __init__(self, stop: threading.Event, server: Process, on_phase: Callable[[str], None]) -> None:
        self._stop, self._on_phase = stop, on_phase
        self.server = server
        self.client: Process | None = None  # set while it must not end
        self.doing = "starting"

    def phase(self, doing: str) -> None:
        self.doing = doing
        self._on_phase(doing)

    def check(self) -> None:
        """Raise Stopped or EngineFailed if the run cannot go on."""
        if self._stop.is_set():
            raise Stopped
        if self.server.poll() is not None:
            raise death(self.server, self.doing, "engine_died")
        if self.client is not None and self.client.poll() is not None:
            raise death(self.client, self.doing, "client_failed")

    def pause(self, seconds: float) -> None:
        self._stop.wait(max(0.0, seconds))
        self.check()

    def until(self, done: Callable[[], T | None], timeout_s: float, failure_class: str, every_s: float = POLL_S) -> T:
        """The first value of `done()` that is not None; EngineFailed (`failure_class`) after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (value := done()) is None:
            if time.monotonic() > deadline:
                raise EngineFailed(f"{self.doing}: not finished after {timeout_s:.0f} s", failure_class)
            self.pause(every_s)
        return value

    def call(self, function: Callable[[], T]) -> T:
        """Result of a blocking call, made in a thread so that a stop or a death ends the wait at once."""
        results: list[T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(function())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, name="http", daemon=True)
        thread.start()
        while thread.is_alive():
            self.check()
            thread.join(POLL_S)
        if errors:
            if isinstance(errors[0], EngineFailed):  # often the first sign of a dying engine: say so instead
                for _ in range(60):
                    self.pause(0.1)
            raise errors[0]
        return results[0]


class StartWatch:
    """`pause` for the wait until the engine is healthy: with a time limit and a limit on silence."""

    def __init__(self, watch: Watch, start_s: float, silence_s: float) -> None:
        self._watch, self._start_s, self._silence_s = watch, start_s, silence_s
        self._begun = self._grown = self._looked = time.monotonic()
        self._size = 0

    def pause(self, seconds: float) -> None:
        self._watch.pause(seconds)
        now = time.monotonic()
        if now - self._looked >= 0.5:
            self._looked = now
            self._look(now)

    def _look(self, now: float) -> None:
        log = self._watch.server.log
        size = log.stat().st_size
        if size != self._size:
            self._size, self._grown = size, now
            doing = parse_server_log(log.read_bytes().decode(errors="replace")).phase
            if doing != self._watch.doing:
                self._watch.phase(doing)
        silent_s, waited_s = now - self._grown, now - self._begun
        where = f"phase {self._watch.doing}, last line: {self._watch.server.last_line()}"
        if silent_s > self._silence_s:
            raise EngineFailed(
                f"no new log line for {silent_s:.0f} s during the start ({where})",
                "start_silent",
                "see server.log.gz; raise engine.timeouts.silence_s if the phase is only slow",
            )
        if waited_s > self._start_s:
            raise EngineFailed(
                f"not healthy after {waited_s:.0f} s ({where})",
                "start_timeout",
                "see server.log.gz; or raise engine.timeouts.start_s",
            )
