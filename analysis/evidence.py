"""A finished folder's raw files, read for the gates: the same for the runner, `campaign validate` and the load."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import duckdb

from analysis.db import SCHEMA_SQL, TELEMETRY_SQL
from analysis.formats.bench import BenchResult, RequestRow
from analysis.formats.errors import FormatError
from analysis.formats.metrics import Metrics, parse_metrics
from analysis.formats.run_record import RunRecord, parse_run_record
from analysis.formats.server_log import parse_server_log
from analysis.formats.steps import StepRow, StepTrace
from analysis.gate import Evidence, TelemetryFacts

PARQUET = ("requests", "steps", "telemetry")
_FACTS = f"SELECT folder, {', '.join(field.name for field in fields(TelemetryFacts))} FROM telemetry_facts"
_ITLS = "len(itl_us), coalesce(list_sum(itl_us), 0)::BIGINT, coalesce(list_min(itl_us), 0)"
_COLUMNS = {"steps": "*", "requests": f"* REPLACE ([] AS itl_us), {_ITLS}"}  # of StepRow and RequestRow
_CLIENT_TABLE = re.compile(r"^([A-Z][^:\n]{3,60}):\s+(\d+(?:\.\d+)?)\s*$", re.MULTILINE | re.ASCII)


def read_record(folder: Path) -> RunRecord:
    """run.json, with the files it lists, unchanged, and no others. Raises OSError or ValueError: what is wrong."""
    record = parse_run_record((folder / "run.json").read_bytes(), folder.name)
    check_files(folder, record)
    return record


def check_files(folder: Path, record: RunRecord) -> None:
    """Raise OSError or ValueError when the folder's files are not those that its record lists: what is wrong."""
    for name, digest in sorted(record.files_sha256.items()):
        if not (folder / name).is_file():
            raise ValueError(f"{name} is missing")
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise ValueError(f"{name} was changed after the run: its SHA-256 differs from run.json")
    unlisted = {path.name for path in folder.iterdir()} - {"run.json", *record.files_sha256}
    if unlisted:
        raise ValueError(f"{min(unlisted)} came in after the run: run.json does not list it")


def read_evidence(runs: Sequence[tuple[Path, RunRecord]]) -> Iterator[Evidence]:
    """What each folder's files say. Many at once, as planning the telemetry's views takes longer than running them.
    Raises OSError or ValueError (FormatError) when a file of one of them cannot be read."""
    with _staging().cursor() as con:
        try:
            con.begin()
            insert(con, "attempts", [{"folder": folder.name, **dict(record.timeline)} for folder, record in runs])
            insert_parquet(con, "telemetry", [folder for folder, _ in runs])
            facts = {name: TelemetryFacts(*row) for name, *row in con.execute(_FACTS).fetchall()}
            for folder, record in runs:
                yield _evidence(con, folder, record, facts.get(folder.name))
        except duckdb.Error as error:
            raise FormatError(str(error).splitlines()[0]) from error
        finally:
            con.rollback()


@cache
def _staging() -> duckdb.DuckDBPyConnection:
    """A database in memory for the rows of some runs, which no transaction keeps."""
    con = duckdb.connect(config={"threads": 1})
    con.execute(SCHEMA_SQL.read_text(encoding="utf-8") + TELEMETRY_SQL.read_text(encoding="utf-8"))
    return con


def _evidence(
    con: duckdb.DuckDBPyConnection, folder: Path, record: RunRecord, telemetry: TelemetryFacts | None
) -> Evidence:
    log, steps = folder / "server.log.gz", _rows(con, folder, "steps")
    return Evidence(
        record,
        log=parse_server_log(gunzip(log)) if log.is_file() else None,
        bench=_bench(folder, _rows(con, folder, "requests")),
        before=_metrics(folder / "metrics_before.txt.gz"),
        after=_metrics(folder / "metrics_after.txt.gz"),
        steps=None if steps is None else _trace(record, steps),
        telemetry=telemetry,
        client_log=_client_log(folder / "bench.log.gz"),
        sitting=read_provenance(folder.parent.parent, record.sitting_id),
    )


def read_provenance(results: Path, sitting_id: str) -> dict[str, Any]:
    """provenance.json of a sitting; empty where there is none that can be read."""
    try:
        return dict(json.loads((results / "sittings" / sitting_id / "provenance.json").read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def fact_at(found: dict[str, Any], key: str) -> Any:
    """The fact at a path with dots; None where there is none."""
    value: Any = found
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def gunzip(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace")


def insert(con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, by name, in one statement: a list a column, unnested side by side."""
    if rows:
        columns = con.table(table).columns
        marks = ", ".join("unnest(?)" for _ in columns)
        con.execute(f"INSERT INTO {table} SELECT {marks}", [[row.get(column) for row in rows] for column in columns])


def insert_parquet(con: duckdb.DuckDBPyConnection, table: str, folders: Sequence[Path]) -> None:
    """The folders' Parquet files of a table's name, as far as they are there, into that table."""
    paths = [path for folder in folders if (path := folder / f"{table}.parquet").is_file()]
    if paths:
        selects = " UNION ALL ".join([f"SELECT ?, {_from_parquet(table)}"] * len(paths))
        con.execute(f"INSERT INTO {table} {selects}", [word for p in paths for word in (p.parent.name, str(p))])


@cache
def _from_parquet(table: str) -> str:
    """The columns of a file, as SQL: by name, cast to the schema's types."""
    known = _staging().table(table)
    picked = [f"{name}::{kind} AS {name}" for name, kind in zip(known.columns, known.types, strict=True)][1:]
    return f"{', '.join(picked)} FROM read_parquet(?)"


def _rows(con: duckdb.DuckDBPyConnection, folder: Path, table: str) -> list[tuple[Any, ...]] | None:
    path = folder / f"{table}.parquet"
    if not path.is_file():
        return None
    select = f"SELECT {_COLUMNS[table]} FROM (SELECT {_from_parquet(table)}) ORDER BY 1"
    return con.execute(select, [str(path)]).fetchall()


def _bench(folder: Path, requests: list[tuple[Any, ...]] | None) -> BenchResult | None:
    if requests is None or not (folder / "bench.json").is_file():
        return None
    scalars = json.loads((folder / "bench.json").read_bytes())
    counts = ("num_prompts", "completed", "failed", "duration")
    if not isinstance(scalars, dict) or not all(isinstance(scalars.get(key), int | float) for key in counts):
        raise FormatError(f"bench.json is not an object with the numbers {', '.join(counts)}")
    return BenchResult(scalars, tuple(map(RequestRow._make, requests)))


def _client_log(path: Path) -> dict[str, float]:
    text = gunzip(path) if path.is_file() else ""
    return {label: float(value) for label, value in _CLIENT_TABLE.findall(text)}


def _metrics(path: Path) -> Metrics | None:
    return parse_metrics(gunzip(path)) if path.is_file() else None


def _trace(record: RunRecord, rows: list[tuple[Any, ...]]) -> StepTrace:
    """Records of before `step_trace_end` was kept have only their verdict on it."""
    steps, end = tuple(map(StepRow._make, rows)), record.step_trace_end
    if end is None:
        cut_off = any(reason.code == "step_trace_incomplete" for reason in record.reasons)
        return StepTrace(steps, not cut_off, None, None)
    return StepTrace(steps, end.complete, end.dropped, end.errors)
