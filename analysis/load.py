"""A results folder into DuckDB: explicit column types, rebuilt whole, and put in place in one rename.

Reads what docs/result-files.md describes. The content does not depend on the order in which the file system
lists folders. A run that cannot be read is listed in `unreadable` and does not hinder the others.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import duckdb
from pydantic import ValidationError

from analysis.db import SCHEMA_SQL, VIEWS_SQL, connect
from analysis.effects import Effect, Value, compute_effects, t975
from analysis.errors import LoadError
from analysis.formats.metrics import parse_metrics
from analysis.formats.run_record import RunRecord
from analysis.formats.server_log import parse_server_log

_MAX_DF = 400
_BENCH = {
    "bench_completed": "completed",
    "bench_failed": "failed",
    "bench_duration_s": "duration",
    "bench_input_tokens": "total_input_tokens",
    "bench_output_tokens": "total_output_tokens",
    "bench_output_tok_s": "output_throughput",
    "bench_mean_ttft_ms": "mean_ttft_ms",
    "bench_mean_tpot_ms": "mean_tpot_ms",
    "bench_mean_itl_ms": "mean_itl_ms",
}
_Connection = duckdb.DuckDBPyConnection
_PARQUET = ("requests", "steps", "telemetry")


@dataclass(frozen=True)
class LoadSummary:
    """What was loaded. `runs` counts attempts; `counted` those that the figures rest on."""

    database: Path
    runs: int
    counted: int
    primes: int
    unreadable: int

    def __str__(self) -> str:
        lost = f", {self.unreadable} unreadable" if self.unreadable else ""
        return f"{self.database}: {self.runs} runs ({self.counted} counted), {self.primes} primes{lost}"


def load(results: Path, database: Path) -> LoadSummary:
    """Load `results` (the folder of one campaign) into `database`, replacing it when all is in.

    Raises LoadError if the folder is no results folder or the database cannot be written.
    """
    header = _header(results)
    temporary = database.with_name(database.name + ".loading")
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with connect(temporary, read_only=False) as con:
            con.execute(SCHEMA_SQL.read_text(encoding="utf-8"))
            con.execute(
                "INSERT INTO campaign VALUES (?, ?)",
                [header["campaign"], json.dumps(header.get("configuration"), sort_keys=True)],
            )
            _load_sittings(con, results)
            for folder in _run_folders(results):
                _load_run(con, folder)
            _derive(con)
            summary = _summary(con, database)
        temporary.replace(database)
    except (OSError, duckdb.IOException) as error:
        raise LoadError(
            f"{database} cannot be written: {error}", "choose another path with --database"
        ) from error
    finally:
        for leftover in (temporary, temporary.with_name(temporary.name + ".wal")):
            with suppress(OSError):
                leftover.unlink()
    return summary


def _header(results: Path) -> dict[str, Any]:
    path = results / "campaign.json"
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        return {"campaign": str(header["campaign"]), "configuration": header.get("configuration")}
    except FileNotFoundError as error:
        raise LoadError(
            f"{results} is not a results folder: it has no campaign.json", "name results/<campaign>"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"{path} cannot be read: {error}", "restore it from a copy") from error


def _run_folders(results: Path) -> list[Path]:
    """Finished folders of runs/ and primes/ by name; `.partial` ones were cut off and are not results."""
    found = [path for kind in ("runs", "primes") for path in (results / kind).glob("*") if path.is_dir()]
    return sorted(
        (p for p in found if not p.name.endswith(".partial")), key=lambda p: (p.name, p.parent.name)
    )


def _load_sittings(con: _Connection, results: Path) -> None:
    for path in sorted((results / "sittings").glob("*/provenance.json")):
        sitting = path.parent.name
        try:
            provenance = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            con.execute("INSERT INTO unreadable VALUES (?, ?)", [f"sittings/{sitting}", str(error)])
            continue
        con.execute("INSERT INTO sittings VALUES (?, ?)", [sitting, json.dumps(provenance, sort_keys=True)])
        facts = [(sitting, key, value) for key, value in _flatten("", provenance)]
        _insert(con, "sitting_facts", ("sitting_id", "key", "value"), facts)


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, str | None]]:
    """Leaves of nested tables as (dotted key, text); a list of plain values is one leaf."""
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), value[key])
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for index, item in enumerate(value):
            yield from _flatten(f"{prefix}.{index}", item)
    elif isinstance(value, list):
        yield prefix, ", ".join(str(item) for item in value)
    else:
        yield prefix, None if value is None else str(value)


def _load_run(con: _Connection, folder: Path) -> None:
    """All of a run or, when something in it cannot be read, none of it and a row in `unreadable`."""
    con.begin()
    try:
        _insert_run(con, folder)
    except (OSError, EOFError, ValueError, duckdb.Error) as error:
        con.rollback()
        problem = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            problem = f"run.json: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        place = f"{folder.parent.name}/{folder.name}"
        problem = problem.replace(str(folder), place).splitlines()[0]
        con.execute("INSERT INTO unreadable VALUES (?, ?)", [place, problem])
    else:
        con.commit()


def _insert_run(con: _Connection, folder: Path) -> None:
    record = _read_record(folder)
    row = _attempt(record, folder)
    _insert(con, "attempts", tuple(row), [tuple(row.values())])
    for table in _PARQUET:
        _load_parquet(con, folder, table)
    for moment in ("before", "after"):
        samples = _metric_rows(folder / f"metrics_{moment}.txt.gz")
        columns = ("folder", "moment", "name", "labels", "value")
        _insert(con, "metrics", columns, [(folder.name, moment, *sample) for sample in samples])
    reasons = [(folder.name, r.code, r.severity, r.evidence, r.advice) for r in record.reasons]
    _insert(con, "reasons", ("folder", "code", "severity", "evidence", "advice"), reasons)


def _read_record(folder: Path) -> RunRecord:
    record = RunRecord.model_validate_json((folder / "run.json").read_bytes())
    if record.folder != folder.name:
        raise ValueError(f"run.json says folder {record.folder!r}")
    for name, digest in sorted(record.files_sha256.items()):
        if not (folder / name).is_file():
            raise ValueError(f"{name} is missing")
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise ValueError(f"{name} was changed after the run: its SHA-256 differs from run.json")
    return record


def _attempt(record: RunRecord, folder: Path) -> dict[str, Any]:
    """The row of `attempts`: the record flattened, the server log's facts, the client's scalars."""
    plain = record.model_dump(
        exclude={
            "schema_version",
            "reasons",
            "timeline",
            "gpu",
            "engine",
            "serve_argv",
            "bench_argv",
            "engine_environment",
            "server_log",
            "files_sha256",
        }
    )
    row: dict[str, Any] = {**plain, **record.timeline.model_dump()}
    row["block_arms"] = list(record.block_arms)
    if record.gpu is not None:
        row |= {f"gpu_{key}": value for key, value in record.gpu.model_dump().items()}
    engine = record.engine
    row |= {"engine_kind": engine.kind, "engine_version": engine.version, "simulated": engine.simulated}
    log = folder / "server.log.gz"
    facts = parse_server_log(_gunzip(log)).to_dict() if log.is_file() else record.server_log
    row |= {key: facts.get(key) for key in _LOG_FACTS}
    bench = folder / "bench.json"
    if bench.is_file():
        scalars = json.loads(bench.read_text(encoding="utf-8"))
        if not isinstance(scalars, dict):
            raise ValueError("bench.json is not one JSON object")
        row |= {column: scalars.get(key) for column, key in _BENCH.items()}
    return row


_LOG_FACTS = (
    "vllm_version", "architecture", "max_model_len", "max_num_batched_tokens", "enforce_eager",
    "cudagraph_mode", "compile_mode", "capture_sizes", "attention_backend", "weights_load_s", "model_load_s",
    "model_load_gib",
    "compile_cache", "dynamo_s", "inductor_s", "torch_compile_s", "profiling_s", "estimated_graph_gib",
    "available_kv_gib", "kv_tokens", "max_concurrency", "capture_s", "capture_gib", "graph_pool_actual_gib",
    "graphs_captured_piecewise", "graphs_captured_full", "engine_init_s", "engine_init_compile_s",
    "jit_compilations", "last_line",
)  # fmt: skip


def _gunzip(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace")


def _metric_rows(path: Path) -> Iterable[tuple[str, str, float]]:
    if not path.is_file():
        return ()
    return [row for row in parse_metrics(_gunzip(path)).as_rows() if not row[0].endswith("_created")]


def _load_parquet(con: _Connection, folder: Path, table: str) -> None:
    """Columns by name, cast to the schema's types; a missing column is an error."""
    path = folder / f"{table}.parquet"
    if not path.is_file():
        return
    columns = [
        (name, kind) for name, kind, *_ in con.execute(f"DESCRIBE {table}").fetchall() if name != "folder"
    ]
    picked = ", ".join(f"{name}::{kind}" for name, kind in columns)
    con.execute(f"INSERT INTO {table} SELECT ?, {picked} FROM read_parquet(?)", [folder.name, str(path)])


def _insert(con: _Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows in one statement: a list a column, unnested side by side."""
    if rows:
        names, marks = ", ".join(columns), ", ".join("unnest(?)" for _ in columns)
        con.execute(
            f"INSERT INTO {table} ({names}) SELECT {marks}",
            [list(column) for column in zip(*rows, strict=True)],
        )


def _derive(con: _Connection) -> None:
    """Everything computed from the raw tables: quantiles, views, effects."""
    _insert(con, "student_t", ("df", "t975"), [(df, t975(df)) for df in range(1, _MAX_DF + 1)])
    con.execute(VIEWS_SQL.read_text(encoding="utf-8"))
    keys = [f.name for f in fields(Value)]
    rows = con.execute(f"SELECT {', '.join(keys)} FROM run_values ORDER BY ALL").fetchall()
    names = [f.name for f in fields(Effect)]
    effects = [[getattr(e, name) for name in names] for e in compute_effects([Value(*row) for row in rows])]
    _insert(con, "effects", names, effects)


def _summary(con: _Connection, database: Path) -> LoadSummary:
    counts = con.execute("SELECT attempts, counted, primes, unreadable FROM summary").fetchone()
    assert counts is not None
    return LoadSummary(database, *counts)
