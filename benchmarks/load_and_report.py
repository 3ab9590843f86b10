"""How long load and report take, and how much memory, on campaigns of 40, 400 and 4,000 runs.

    python -m benchmarks.load_and_report [RUNS ...]

The campaigns are blocks of two measured runs under other names: 500 requests, about 2,200
engine steps and 1,500 GPU samples a run. Their figures mean nothing. Each is loaded and reported in a process of its
own; from outside, every SAMPLE_S seconds, the memory of it and the processes that it started is added up, as PSS (a
page that several processes share is counted once among them) and as RSS (it is counted for each of them).
BENCHMARK_DIR: a folder for the campaigns on the file system of results/.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

SOURCE = Path(__file__).parent.parent / "results" / "enforce_eager"
ARMS = ("graphs", "eager")
SAMPLE_S = 0.2


def make_campaign(root: Path, runs: int) -> None:
    """`runs` folders, two a block, each block on a machine of its own, as all have the same times."""
    import duckdb  # in a process that maps it too, PSS of the measured ones would be less

    root.mkdir()
    for name in ("campaign.json", "campaign.toml"):
        (root / name).hardlink_to(SOURCE / name)
    for source in (SOURCE / "sittings").glob("*/provenance.json"):
        (root / "sittings" / source.parent.name).mkdir(parents=True)
        provenance = json.loads(source.read_text(encoding="utf-8")) | {"machine": {}}
        (root / "sittings" / source.parent.name / source.name).write_text(json.dumps(provenance), encoding="utf-8")
    for number in range(runs):
        arm, repetition = ARMS[number % 2], number // 2 + 1
        (source,) = (SOURCE / "runs").glob(f"32b.{arm}.sustained.r1.p1a*")
        folder = root / "runs" / source.name.replace(".r1.", f".r{repetition}.")
        folder.mkdir(parents=True)
        record = json.loads((source / "run.json").read_text(encoding="utf-8"))
        record |= {
            **{key: record[key].replace(".r1", f".r{repetition}") for key in ("run_id", "folder", "block_id")},
            "repetition": repetition,
            "block_arms": list(ARMS),
            "machine_id": f"machine-{repetition}",
        }
        for name in record["files_sha256"]:
            if name.endswith(".parquet"):  # no two runs hold the same bytes
                metadata = f"KV_METADATA {{block: '{repetition}'}}"
                duckdb.execute(f"COPY (FROM '{source / name}') TO '{folder / name}' (FORMAT parquet, {metadata})")
            elif name == "bench.log.gz":
                (folder / name).write_bytes((source / name).read_bytes() + gzip.compress(f"{repetition}\n".encode()))
            else:
                (folder / name).hardlink_to(source / name)
            record["files_sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")


def memory(process: subprocess.Popen[str]) -> Iterator[tuple[float, float, float]]:
    """PSS and RSS in MiB of a process and those that it started, each moment's sum, and the greatest RSS of one of the
    latter, until it has ended."""
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(process.pid)
            now = [_pss_rss(one) for one in (own, *own.children(recursive=True))]
            yield sum(pss for pss, _ in now), sum(rss for _, rss in now), max([rss for _, rss in now[1:]], default=0)
        time.sleep(SAMPLE_S)


def _pss_rss(process: psutil.Process) -> tuple[float, float]:
    """0 of one that has just ended; RSS twice where the system does not tell PSS."""
    try:
        rss = process.memory_info().rss / 2**20
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").split()
        return int(rollup[rollup.index("Pss:") + 1]) / 1024, rss
    except (FileNotFoundError, PermissionError):
        return rss, rss
    except (psutil.NoSuchProcess, OSError, ValueError):
        return 0, 0


def measure(root: Path) -> Iterator[str]:
    """Runs, counted runs, step rows, seconds of load and report, peak memory and size of the page."""
    from analysis.db import connect
    from analysis.load import load
    from report.render import render

    begin, begin_s = _cpu_s(), time.monotonic()
    summary = load(root / "results", root / "results.duckdb")
    loaded = _cpu_s()
    page = render(root / "results.duckdb", root / "out")[0]
    rendered, rendered_s = _cpu_s(), time.monotonic()
    with connect(summary.database) as con:
        ((rows,),) = con.execute("SELECT count(*) FROM steps").fetchall()
    yield f"{summary.runs:,}"
    yield f"{summary.counted:,}"
    yield f"{rows:,}"
    yield f"{loaded - begin:.1f}"
    yield f"{rendered - loaded:.1f}"
    yield f"{1000 * (rendered - begin) / summary.runs:.0f}"
    yield f"{rendered_s - begin_s:.1f}"
    yield f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f}"
    yield f"{page.stat().st_size / 1e6:.2f}"


def _cpu_s() -> float:
    """Of this process, those that it started and those that have ended. The workers' server counts the workers."""
    return sum(os.times()[:4]) + sum(sum(one.cpu_times()[:4]) for one in psutil.Process().children())


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--measure"]:
        print("| " + " | ".join(measure(Path(arguments[1]))) + " |", end="")
        return
    print("| runs | counted | step rows | load, CPU s | report, CPU s | ms a run | wall, s | peak, MiB", end=" | ")
    print("HTML, MB | a worker, MiB | sum: PSS (RSS), MiB |\n" + "|---:" * 11 + "|", flush=True)
    for runs in map(int, arguments or ("40", "400", "4000")):
        with TemporaryDirectory(dir=os.environ.get("BENCHMARK_DIR", SOURCE.parent)) as folder:
            make_campaign(Path(folder) / "results", runs)
            command = [sys.executable, "-m", "benchmarks.load_and_report", "--measure", folder]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                pss, rss, worker = map(max, zip(*memory(process), strict=True))
                print(f"{process.communicate()[0]} {worker:,.0f} | {pss:,.0f} ({rss:,.0f}) |", flush=True)
            if process.returncode:
                raise SystemExit(process.returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
