"""How long load and report take, and how much memory, on campaigns of 40, 400 and 4,000 runs.

    python -m benchmarks.load_and_report [RUNS ...]

The campaigns are blocks of two measured runs under other names: 500 requests, about 2,200
engine steps and 1,500 GPU samples a run. Their figures mean nothing. Each is loaded and reported in a process of its
own. BENCHMARK_DIR: a folder for them on the file system of results/.
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
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

SOURCE = Path(__file__).parent.parent / "results" / "enforce_eager"
ARMS = ("graphs", "eager")


def make_campaign(root: Path, runs: int) -> None:
    """`runs` folders, two a block, each block on a machine of its own, as all have the same times."""
    for name in ("campaign.json", "campaign.toml"):
        (root / name).hardlink_to(SOURCE / name)
    for source in (SOURCE / "sittings").glob("*/provenance.json"):
        (root / "sittings" / source.parent.name).mkdir(parents=True)
        provenance = json.loads(source.read_text(encoding="utf-8")) | {"machine": {}}
        (root / "sittings" / source.parent.name / source.name).write_text(json.dumps(provenance), encoding="utf-8")
    for number in range(runs):
        arm, repetition = ARMS[number % 2], number // 2 + 1
        (source,) = (SOURCE / "runs").glob(f"32b.{arm}.sustained.r1.*")
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


def measure(root: Path) -> Iterator[str]:
    """Runs, counted runs, step rows, seconds of load and report, peak memory (and of a worker) and size of the page."""
    from analysis.db import connect
    from analysis.load import load
    from report.render import render

    begin, begin_s = _cpu_s(), time.monotonic()
    summary = load(root, root / "results.duckdb")
    loaded = _cpu_s()
    page = render(root / "results.duckdb", root / "out")[0]
    rendered, rendered_s = _cpu_s(), time.monotonic()
    with connect(summary.database) as con:
        ((rows,),) = con.execute("SELECT count(*) FROM steps").fetchall()
    own, workers = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    yield f"{summary.runs:,}"
    yield f"{summary.counted:,}"
    yield f"{rows:,}"
    yield f"{loaded - begin:.1f}"
    yield f"{rendered - loaded:.1f}"
    yield f"{1000 * (rendered - begin) / summary.runs:.0f}"
    yield f"{rendered_s - begin_s:.1f}"
    yield f"{own:,.0f} + {workers:,.0f}"
    yield f"{page.stat().st_size / 1e6:.2f}"


def _cpu_s() -> float:
    """Of this process and of those it has ended."""
    return sum(os.times()[:4])


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--measure"]:
        print("| " + " | ".join(measure(Path(arguments[1]))) + " |", flush=True)
        return
    print("| runs | counted | step rows | load, CPU s | report, CPU s | ms a run | wall, s | peak, MiB | HTML, MB |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for runs in map(int, arguments or ("40", "400", "4000")):
        with TemporaryDirectory(dir=os.environ.get("BENCHMARK_DIR", SOURCE.parent)) as folder:
            make_campaign(Path(folder), runs)
            subprocess.run([sys.executable, "-m", "benchmarks.load_and_report", "--measure", folder], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
