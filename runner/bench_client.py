"""The bench client of a run: started early, held back until the go, waited for.

It prints `campaign: ready <CLOCK_MONOTONIC ns>` when its prompts are built, then waits for one byte on stdin; end of
file instead makes it leave without measuring.
"""

import re
import subprocess
import time
from contextlib import suppress

from runner.processes import Process

READY = re.compile(rb"^campaign: ready (\d+)$", re.MULTILINE)


class BenchClient(Process):
    """`vllm bench serve` (or the stand-in's) as a held-back child process."""

    stdin = subprocess.PIPE

    def ready_ns(self) -> int | None:
        """When it became ready (CLOCK_MONOTONIC ns, by its own word), None while it is not."""
        match = READY.search(self.log_bytes())
        return int(match[1]) if match else None

    def go(self) -> int:
        """Release it; returns the moment (CLOCK_MONOTONIC ns). One that has just ended is no error: `poll` tells."""
        moment = time.monotonic_ns()
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.write(b"g")
            self._popen.stdin.close()
        return moment
