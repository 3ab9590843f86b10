"""Work on many runs for several processes at once."""

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, get_context, parent_process
from threading import Thread
from typing import Any

_RUNS = 32  # for each process: it takes a second to start, and 150 MiB
Each = Callable[..., Iterator[Any]]  # as `map`


def prepare(runs: int) -> int:
    """The processes for so many runs: up to four, one a CPU. The server of which they are forks imports what they need,
    once for all, while this process goes on; forks of this process would lack DuckDB's threads."""
    workers = min(4, os.cpu_count() or 1, runs // _RUNS)
    if workers > 1:
        forkserver.set_forkserver_preload(["analysis.validate", "analysis.staircase"])
        forkserver.ensure_running()
    return workers


@contextmanager
def spread(runs: int) -> Iterator[Each]:
    """A `map` for so many runs; of few, in this process."""
    if (workers := prepare(runs)) < 2:
        yield map
    else:
        with ProcessPoolExecutor(workers, get_context("forkserver"), _in_worker) as pool:
            yield pool.map


def _in_worker() -> None:
    """It ends with its parent, however that ends, and does not search for cycles, of which there are none."""
    gc.disable()
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := parent_process():
        parent.join()
        os._exit(1)
