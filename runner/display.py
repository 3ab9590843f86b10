"""What a person sees while a campaign runs: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.formats.run_record import RunRecord


@dataclass
class Tally:
    """Counts for the display. `left` counts runs and primes still to do; `left_s` is their estimate in seconds."""

    done: int = 0
    failed: int = 0
    left: int = 0
    left_s: float = 0.0


class Display(Protocol):
    def begin(self, folder: str, tally: Tally) -> None: ...
    def phase(self, name: str) -> None: ...
    def finished(self, record: RunRecord, seconds: float, tally: Tally) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...


def clock(seconds: float) -> str:
    """`h:mm:ss` or `m:ss` of a duration in seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def outcome(record: RunRecord) -> str:
    """One phrase: valid, or what is wrong."""
    if record.status == "failed":
        return f"failed: {record.failure_class}: {record.failure_message}"
    bad = [r.code for r in record.reasons if r.severity == "invalid"]
    warned = [r.code for r in record.reasons if r.severity == "warning"]
    if record.status == "invalid":
        return "invalid: " + ", ".join(bad)
    return "valid" + (f" (warnings: {', '.join(warned)})" if warned else "")


class PlainDisplay:
    """One line an event, with the time since the start; for logs, pipes and detached sittings."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()

    def _line(self, text: str) -> None:
        print(f"[{clock(time.monotonic() - self._start)}] {text}", file=self._stream, flush=True)

    def begin(self, folder: str, tally: Tally) -> None:
        self._line(
            f"{folder}: start ({tally.done} done, {tally.failed} failed, {tally.left} left, about {clock(tally.left_s)} to go)"
        )

    def phase(self, name: str) -> None:
        self._line(f"  {name}")

    def finished(self, record: RunRecord, seconds: float, tally: Tally) -> None:
        self._line(f"{record.folder}: {outcome(record)} after {seconds:.1f} s")

    def note(self, text: str) -> None:
        self._line(text)

    def close(self) -> None:
        pass


class LiveDisplay:
    """A panel that is redrawn in place: the run in progress, its phase, what is done, failed and left, time to go."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tally = Tally()
        self._folder = "starting"
        self._phase = ""
        self._begun = self._phase_begun = time.monotonic()
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def _render(self) -> Group:
        tally, now = self._tally, time.monotonic()
        total = max(1, tally.done + tally.failed + tally.left)
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text("run", style="dim"), Text(self._folder, style="bold"), clock(now - self._begun))
        grid.add_row(Text("phase", style="dim"), self._phase, clock(now - self._phase_begun))
        counts = Text.assemble(
            (f"{tally.done} done", "green"),
            "  ",
            (f"{tally.failed} failed", "red" if tally.failed else "dim"),
            f"  {tally.left} left",
        )
        grid.add_row(Text("campaign", style="dim"), counts, f"about {clock(tally.left_s)} to go")
        return Group(grid, ProgressBar(total=total, completed=tally.done + tally.failed, width=60))

    def begin(self, folder: str, tally: Tally) -> None:
        self._folder, self._tally, self._phase = folder, tally, "preparing"
        self._begun = self._phase_begun = time.monotonic()

    def phase(self, name: str) -> None:
        self._phase, self._phase_begun = name, time.monotonic()

    def finished(self, record: RunRecord, seconds: float, tally: Tally) -> None:
        self._tally = tally
        style = {"valid": "green", "invalid": "yellow", "failed": "red"}[record.status]
        self._console.print(Text.assemble((record.folder, "bold"), " ", (outcome(record), style), f"  {seconds:.1f} s"))

    def note(self, text: str) -> None:
        self._console.print(Text(text))

    def close(self) -> None:
        self._live.stop()


def make_display(stream: TextIO) -> Display:
    """The live panel if `stream` is a terminal, plain lines otherwise."""
    return LiveDisplay(Console(file=stream)) if stream.isatty() else PlainDisplay(stream)
