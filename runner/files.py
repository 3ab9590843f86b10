"""Files of a run folder: logs compressed without request lines, tables as Parquet, hashes."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

import duckdb

from analysis.formats.bench import RequestRow
from analysis.formats.errors import FormatError
from runner.errors import StoreError

REQUEST_LINE = re.compile(rb'"(?:GET|POST|HEAD|OPTIONS) \S+ HTTP/1\.[01]" \d{3}|\] Received request ')

REQUESTS = (
    "request INTEGER, start_s DOUBLE, ttft_s DOUBLE, latency_s DOUBLE, input_tokens INTEGER, output_tokens INTEGER, "
    "itl_us INTEGER[], error VARCHAR"
)
STEPS = (
    "t_ns BIGINT, running INTEGER, waiting INTEGER, kv_usage DOUBLE, preempted INTEGER, prompt_tokens INTEGER, "
    "generated_tokens INTEGER, unpadded_tokens INTEGER, padded_tokens INTEGER, runtime_mode VARCHAR"
)
TELEMETRY = (
    "t_ns BIGINT, energy_mj BIGINT, power_mw INTEGER, sm_clock_mhz INTEGER, memory_clock_mhz INTEGER, "
    "temperature_c INTEGER, memory_used_mib INTEGER, gpu_utilisation_pct INTEGER, throttle_reasons BIGINT"
)


def without_request_lines(log: bytes) -> bytes:
    """An engine log without the lines that report single requests."""
    return b"".join(line for line in log.splitlines(keepends=True) if not REQUEST_LINE.search(line))


def write_gz(path: Path, data: bytes) -> None:
    """Compressed, without a time stamp: the same content gives the same bytes."""
    path.write_bytes(gzip.compress(data, compresslevel=6, mtime=0))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _writing(target: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory to write `target` from.

    Raises FormatError when rows are not of the declared types, StoreError when writing fails.
    """
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            yield connection
    except (duckdb.IOException, duckdb.FatalException) as error:
        raise StoreError(f"cannot write {target}: {error}", "free space, then start the campaign again") from error
    except duckdb.Error as error:
        raise FormatError(f"{target.name}: {error}") from error


def csv_to_parquet(source: Path, target: Path, columns: str, *, numbered: str | None = None) -> None:
    """A CSV file with exactly these columns and types; `#` lines are left out, empty fields become NULL.

    Raises FormatError if it is another or was cut off.

    `numbered` adds a first column of that name with the row's number from 0.
    """
    types = dict(column.split() for column in columns.split(", "))
    data, header = source.read_bytes(), ",".join(types).encode() + b"\n"
    if not data.startswith(header) or not data.endswith(b"\n"):
        raise FormatError(f"{source.name} does not begin with its header or was cut off")
    first = f"CAST(row_number() OVER () - 1 AS INTEGER) AS {numbered}, " if numbered else ""
    with _writing(target) as connection:
        rows = connection.read_csv(str(source), columns=types, auto_detect=False, header=True, comment="#")
        rows.project(f"{first}*").write_parquet(str(target), compression="zstd")


def write_requests(rows: Sequence[RequestRow], target: Path) -> None:
    """requests.parquet."""
    with _writing(target) as connection:
        connection.execute(f"CREATE TABLE requests ({REQUESTS})")
        if rows:
            marks = ", ".join("?" * len(REQUESTS.split(", ")))
            connection.executemany(f"INSERT INTO requests VALUES ({marks})", [astuple(row) for row in rows])
        connection.table("requests").write_parquet(str(target), compression="zstd")
