"""What a person sees while a campaign runs: plain lines, or a live panel on a terminal."""

import time
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.formats.run_record import RunRecord
from runner.units import duration


@dataclass
class Tally:
    """Counts for the display. `left` counts runs and primes still to do; `left_s` is their estimate in seconds."""

    done: int = 0
    failed: int = 0
    left: int = 0
    left_s: float = 0.0


def outcome(record: RunRecord) -> str:
    """One phrase: valid, or what is wrong."""
    if record.status == "failed":
        return f"failed: {record.failure_class}: {record.failure_message}"
    codes = {kind: [r.code for r in record.reasons if r.severity == kind] for kind in ("invalid", "warning")}
    if record.status == "invalid":
        return "invalid: " + ", ".join(codes["invalid"])
    return "valid" + (f" (warnings: {', '.join(codes['warning'])})" if codes["warning"] else "")


class Display:
    """One line an event, with the time since the start; for logs, pipes and detached sittings."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()

    def begin(self, folder: str, tally: Tally) -> None:
        counts = f"{tally.done} done, {tally.failed} failed, {tally.left} left"
        self.note(f"{folder}: start ({counts}, about {duration(tally.left_s)} to go)")

    def phase(self, name: str) -> None:
        self.note(f"  {name}")

    def finished(self, record: RunRecord, seconds: float) -> None:
        self.note(f"{record.folder}: {outcome(record)} after {seconds:.1f} s")

    def note(self, text: str) -> None:
        print(f"[{duration(time.monotonic() - self._start)}] {text}", file=self._stream, flush=True)

    def close(self) -> None:
        pass


class LiveDisplay(Display):
    """A panel that is redrawn in place: the run in progress, its phase, what is done, failed and left, time to go."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._tally, self._folder, self._phase = Tally(), "starting", ""
        self._begun = self._phase_begun = self._start
        # texts as they are; and no import of rich's in the thread that draws, where Ctrl-C would be lost
        console = Console(file=stream, emoji=False, markup=False)
        self._live = Live(get_renderable=self._render, console=console, transient=True)

    def _render(self) -> Group:
        tally, now = self._tally, time.monotonic()
        total = max(1, tally.done + tally.failed + tally.left)
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text("run", style="dim"), Text(self._folder, style="bold"), duration(now - self._begun))
        grid.add_row(Text("phase", style="dim"), self._phase, duration(now - self._phase_begun))
        failed = (f"{tally.failed} failed", "red" if tally.failed else "dim")
        counts = Text.assemble((f"{tally.done} done", "green"), "  ", failed, f"  {tally.left} left")
        grid.add_row(Text("campaign", style="dim"), counts, f"about {duration(tally.left_s)} to go")
        return Group(grid, ProgressBar(total=total, completed=tally.done + tally.failed, width=60))

    def begin(self, folder: str, tally: Tally) -> None:
        self._folder, self._tally = folder, tally
        self._live.start()  # does nothing the second time; not earlier: Ctrl-C must find who closes it
        self.phase("preparing")
        self._begun = self._phase_begun

    def phase(self, name: str) -> None:
        self._phase, self._phase_begun = name, time.monotonic()

    def note(self, text: str) -> None:
        self._live.console.print(Text(text))

    def close(self) -> None:
        self._live.stop()


def make_display(stream: TextIO) -> Display:
    """The live panel if `stream` is a terminal, plain lines otherwise."""
    return LiveDisplay(stream) if stream.isatty() else Display(stream)
