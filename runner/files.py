"""Files of a run folder: logs compressed without request lines, tables as Parquet, hashes."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import duckdb

from analysis.formats.bench import RequestRow
from analysis.formats.errors import FormatError
from runner.errors import StoreError

REQUEST_LINE = re.compile(rb'"(?:GET|POST|HEAD|OPTIONS) \S+ HTTP/1\.[01]" \d{3}|\] Received request ')

REQUESTS = {
    "request": "INTEGER",
    "start_s": "DOUBLE",
    "ttft_s": "DOUBLE",
    "latency_s": "DOUBLE",
    "input_tokens": "INTEGER",
    "output_tokens": "INTEGER",
    "itl_us": "INTEGER[]",
    "error": "VARCHAR",
}
STEPS = {
    "t_ns": "BIGINT",
    "running": "INTEGER",
    "waiting": "INTEGER",
    "kv_usage": "DOUBLE",
    "preempted": "INTEGER",
    "prompt_tokens": "INTEGER",
    "generated_tokens": "INTEGER",
    "unpadded_tokens": "INTEGER",
    "padded_tokens": "INTEGER",
    "runtime_mode": "VARCHAR",
}
TELEMETRY = {
    "t_ns": "BIGINT",
    "energy_mj": "BIGINT",
    "power_mw": "INTEGER",
    "sm_clock_mhz": "INTEGER",
    "memory_clock_mhz": "INTEGER",
    "temperature_c": "INTEGER",
    "memory_used_mib": "INTEGER",
    "gpu_utilisation_pct": "INTEGER",
    "throttle_reasons": "BIGINT",
}


def without_request_lines(log: bytes) -> bytes:
    """An engine log without the lines that report single requests."""
    return b"".join(line for line in log.splitlines(keepends=True) if not REQUEST_LINE.search(line))


def write_gz(path: Path, data: bytes) -> None:
    """Compressed, without a time stamp: the same content gives the same bytes."""
    path.write_bytes(gzip.compress(data, compresslevel=6, mtime=0))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _columns(types: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_literal(name)}: {_literal(kind)}" for name, kind in types.items()) + "}"


def _copy(select: str, target: Path) -> None:
    """Write the rows of `select` to a Parquet file.

    Raises FormatError when the rows are not of the declared types, StoreError when writing fails.
    """
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            connection.execute(f"COPY ({select}) TO {_literal(str(target))} (FORMAT parquet, COMPRESSION zstd)")
    except (duckdb.IOException, duckdb.FatalException) as error:
        raise StoreError(f"cannot write {target}: {error}", "free space, then start the campaign again") from error
    except duckdb.Error as error:
        raise FormatError(f"{target.name}: {error}") from error


def csv_to_parquet(source: Path, target: Path, types: Mapping[str, str], *, numbered: str | None = None) -> None:
    """A CSV file with exactly these columns and types; `#` lines are left out, empty fields become NULL.

    `numbered` adds a first column of that name with the row's number from 0.
    """
    first = f"CAST(row_number() OVER () - 1 AS INTEGER) AS {numbered}, " if numbered else ""
    _copy(
        f"SELECT {first}* FROM read_csv({_literal(str(source))}, header = true, auto_detect = false, "
        f"delim = ',', quote = '\"', nullstr = '', comment = '#', columns = {_columns(types)})",
        target,
    )


def write_requests(rows: Iterable[RequestRow], target: Path) -> None:
    """requests.parquet, through a temporary file of one JSON object a line."""
    source = target.with_suffix(".ndjson.tmp")
    names = tuple(REQUESTS)
    source.write_text(
        "".join(json.dumps({name: getattr(row, name) for name in names}) + "\n" for row in rows), encoding="utf-8"
    )
    _copy(
        f"SELECT * FROM read_json({_literal(str(source))}, format = 'newline_delimited', "
        f"columns = {_columns(REQUESTS)})",
        target,
    )
    source.unlink()
