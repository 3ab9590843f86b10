"""Files of a run folder: logs compressed without request lines, tables as Parquet, hashes."""

import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from analysis.db import SCHEMA_SQL
from analysis.formats.bench import RequestRow
from analysis.formats.errors import FormatError
from runner.errors import StoreError

REQUEST_LINE = re.compile(rb'"(?:GET|POST|HEAD|OPTIONS) \S+ HTTP/1\.[01]" \d{3}|\] Received request ')


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
    """A database in memory, with the tables of schema.sql, to write `target` from.

    Raises FormatError when rows are not of the declared types, StoreError when writing fails.
    """
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            connection.execute(SCHEMA_SQL.read_text(encoding="utf-8"))
            yield connection
    except (duckdb.IOException, duckdb.FatalException) as error:
        raise StoreError(f"cannot write {target}: {error}", "free space, then start the campaign again") from error
    except duckdb.Error as error:
        raise FormatError(f"{target.name}: {error}") from error


def csv_to_parquet(source: Path, target: Path) -> None:
    """A CSV file with exactly the columns of the table that `target` is named after, and its types; `#` lines are left
    out, empty fields become NULL. A step's number is its row's, from 0, and not in the CSV.

    Raises FormatError if it is another or was cut off.
    """
    with _writing(target) as connection:
        table = connection.table(target.stem)
        types = dict(zip(table.columns, map(str, table.types), strict=True))
        numbered = types.pop("step", None) and "CAST(row_number() OVER () - 1 AS INTEGER) AS step, "
        del types["folder"]
        data, header = source.read_bytes(), ",".join(types).encode() + b"\n"
        if not data.startswith(header) or not data.endswith(b"\n"):
            raise FormatError(f"{source.name} does not begin with its header or was cut off")
        rows = connection.read_csv(str(source), columns=types, auto_detect=False, header=True, comment="#")
        rows.project(f"{numbered or ''}*").write_parquet(str(target), compression="zstd")


def write_requests(rows: Sequence[RequestRow], target: Path) -> None:
    """requests.parquet."""
    with _writing(target) as connection:
        if rows:
            count = len(connection.table("requests").columns) - 1  # without folder; what is left of a row is for gates
            connection.executemany(f"INSERT INTO requests VALUES (NULL{', ?' * count})", [row[:count] for row in rows])
        connection.table("requests").project("* EXCLUDE (folder)").write_parquet(str(target), compression="zstd")
