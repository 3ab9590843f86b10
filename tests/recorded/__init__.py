"""The recorded files; README.md says what they are."""

from __future__ import annotations

import gzip
from pathlib import Path

from analysis.formats.steps import HEADER

HERE = Path(__file__).parent
GRAPHS, GRAPHS_WARM, EAGER, MATCHED, COMPILE_ONLY = GPU_RUNS = (
    "32b-graphs-sustained-1",
    "32b-graphs-sustained-2",
    "32b-eager-sustained-1",
    "32b-graphs_kv_matched-sustained-1",
    "32b-compile_only-sustained-1",
)
CPU = "cpu"


def data(folder: str, name: str) -> bytes:
    """A recorded file, unpacked."""
    return gzip.decompress((HERE / folder / f"{name}.gz").read_bytes())


def text(folder: str, name: str) -> str:
    return data(folder, name).decode()


def error_log(case: str) -> str:
    """stdout and stderr of a failed start: badflag, badval, hugebytes, nomodel or port."""
    return text("cpu-errors", f"e_{case}.out") + text("cpu-errors", f"e_{case}.err")


def steps_csv(folder: str) -> str:
    """A run's step trace in the campaign's format.

    The GPU runs' wall times become ns from 1 s at the first row: they are not on the bench's clock.
    """
    raw = text(folder, "steps.csv")
    if raw.startswith(HEADER):
        return raw
    rows = [line.split(",") for line in raw.splitlines()]
    begin = float(rows[0][0]) - 1.0
    lines = [HEADER]
    for wall, running, waiting, usage, generated, prompt, preempted, *tokens in rows:
        t_ns = str(round((float(wall) - begin) * 1e6) * 1000)
        lines.append(",".join([t_ns, running, waiting, usage, preempted, prompt, generated, *tokens]))
    return "\n".join([*lines, f"#end rows={len(rows)} dropped=0 errors=0", ""])
