"""Waiting during a run: every wait also notices a stop request, a dead engine or client, a silent start."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from analysis.formats.failure import classify_failure, root_causes
from analysis.formats.server_log import parse_server_log
from runner import http
from runner.config_model import TimeoutsSection
from runner.errors import EngineFailed
from runner.processes import POLL_S, Child
from runner.signals import StopRequest

T = TypeVar("T")
UNTIL_POLL_S = 0.05  # also while the load runs: coarse, not to disturb it
LOG_LOOK_S = 0.5  # between looks at the engine's log during its start
DYING_S = 6.0  # for an engine that refuses a request to end, so that its log can say why


class Stopped(Exception):
    """A stop was requested (signal). Nothing of the run is left running; its folder is half-written."""


def death(process: Child, doing: str, fallback: str) -> EngineFailed:
    """What a process that ended by itself tells of why; `fallback` is the class if its log does not."""
    text = process.log_bytes().decode(errors="replace")
    failure_class, hint = classify_failure(text) or (fallback, "")
    if failure_class == "engine_died" and doing == "measuring":
        failure_class, hint = "died_in_window", ""
    reason = [process.last_line(), *root_causes(text)][-1]
    message = f"the {process.name} ended with status {process.poll()} while {doing}: {reason}"
    return EngineFailed(message, failure_class, hint)


class Watch:
    """The processes of a run, looked at in every wait. `doing` is the phase, for messages."""

    def __init__(self, stop: StopRequest, server: Child, on_phase: Callable[[str], None]) -> None:
        self._stop, self._on_phase = stop, on_phase
        self.server = server
        self.client: Child | None = None  # set while it must not end
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
        time.sleep(seconds)
        self.check()

    def until(self, done: Callable[[], T | None], timeout_s: float, failure_class: str) -> T:
        """The first value of `done()` that is not None; EngineFailed (`failure_class`) after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (value := done()) is None:
            if time.monotonic() > deadline:
                last = f"{self.server.name}'s last line: {self.server.last_line()}"
                raise EngineFailed(f"{self.doing}: not finished after {timeout_s:.0f} s ({last})", failure_class)
            self.pause(UNTIL_POLL_S)
        return value

    def call(self, function: Callable[[], T]) -> T:
        """Result of a blocking call, made in a thread so that a stop or a death ends the wait at once."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="http", daemon=True).start()
        while not wait([future], POLL_S).done:
            self.check()
        if isinstance(future.exception(), EngineFailed):  # often the first sign of a dying engine: say so instead
            deadline = time.monotonic() + DYING_S
            while time.monotonic() < deadline:
                self.pause(0.1)
        return future.result()

    def until_healthy(self, port: int, timeouts: TimeoutsSection) -> int:
        """The moment at which the engine is healthy (CLOCK_MONOTONIC ns).

        Follows the phases of the start in its log. EngineFailed when the log is silent, or the start takes, too long.
        """
        begun = grown = looked = time.monotonic()
        size = 0
        while (moment := http.healthy_ns(port)) is None:
            self.pause(POLL_S)
            now = time.monotonic()
            if now - looked < LOG_LOOK_S:
                continue
            looked, log = now, self.server.log_bytes()
            if len(log) != size:
                size, grown = len(log), now
                doing = parse_server_log(log.decode(errors="replace")).phase
                if doing != self.doing:
                    self.phase(doing)
            where = f"(phase {self.doing}, last line: {self.server.last_line()})"
            if now - grown > timeouts.silence_s:
                raise EngineFailed(f"no new log line for {now - grown:.0f} s during the start {where}", "start_silent")
            if now - begun > timeouts.start_s:
                raise EngineFailed(f"not healthy after {now - begun:.0f} s {where}", "start_timeout")
        return moment
