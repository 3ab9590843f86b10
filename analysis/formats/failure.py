"""Why an engine or its client failed, read from its log: root causes, a class and the next step (failures.toml)."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PREFIX = re.compile(r"^\([A-Za-z_0-9]+ pid=\d+\) ?")
_HEAD = re.compile(r"^[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]:]+:\d+\] ?", re.ASCII)
_CAUSE = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b(?::|$)|Value error, |Killed$|Fatal Python error"
    r"|[\w.-]+(?: [\w-]+){0,2}: error: |Unknown vLLM environment variable"
    r"|\[shutdown\] MPClient: engine core exited unexpectedly)",
    re.ASCII,
)
# what a process says because another one failed first
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|EngineDeadError|engine core exited unexpectedly|cancelled"
    r"|^RuntimeError: Worker failed with error"
    r"|^asyncio\.exceptions\.CancelledError|^KeyboardInterrupt|^SystemExit"
)
SHUTDOWN = re.compile(r"\[shutdown\] .*(?:trigger received signal|shutdown triggered)")  # asked for
_MAX_LINES = 20
_MAX_CHARS = 2_000  # of a line


@dataclass(frozen=True)
class FailureClass:
    """`then`: retry, give_up (this run) or stop (the campaign); `hint`: the next step; `patterns`: of a line that
    tells of it, none where only the runner sees it."""

    then: Literal["retry", "give_up", "stop"]
    hint: str
    patterns: tuple[str, ...] = ()


FAILURES = {
    name: FailureClass(known["then"], known["hint"], tuple(known.get("patterns", ())))
    for name, known in tomllib.loads(Path(__file__).with_name("failures.toml").read_text(encoding="utf-8")).items()
}


def _lines(log_text: str) -> Iterator[str]:
    """Lines without their heads, up to a requested shutdown: what comes after one is no failure."""
    for raw in log_text.splitlines():
        if SHUTDOWN.search(raw):
            return
        yield _HEAD.sub("", _PREFIX.sub("", raw)).strip()[:_MAX_CHARS]


def root_causes(log_text: str) -> tuple[str, ...]:
    """Lines that name an error's cause, each once, in order, at most 20 of 500 characters.

    Lines that only follow from another process's error count when there is no other.
    """
    named = dict.fromkeys(line[:500] for line in _lines(log_text) if _CAUSE.match(line))
    causes = [line for line in named if not _CONSEQUENCE.search(line)]
    return tuple((causes or list(named))[:_MAX_LINES])


def classify_failure(log_text: str) -> tuple[str, str] | None:
    """(class, next step) of the failure that a log of the engine or the client tells of, or None."""
    lines = list(_lines(log_text))
    for name, known in FAILURES.items():
        pattern = re.compile("|".join(known.patterns) or r"(?!)")
        if any(pattern.search(line) for line in lines):
            return name, known.hint
    return None
