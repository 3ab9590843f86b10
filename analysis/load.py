"""A results folder into DuckDB: explicit column types, rebuilt whole, and put in place in one rename.

Reads what docs/result-files.md describes; each run is judged anew (validate.py). The content does not depend on the
order in which the file system lists folders. A folder that cannot be read is listed in `unreadable` and does not hinder
the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
from scipy.special import stdtrit

from analysis.claims import add_study
from analysis.db import SCHEMA_SQL, TELEMETRY_SQL, VIEWS_SQL, connect
from analysis.errors import LoadError
from analysis.evidence import gunzip, insert_parquet
from analysis.formats.metrics import parse_metrics
from analysis.formats.server_log import parse_server_log
from analysis.gate import Evidence
from analysis.validate import Verdict, judge_each, read_campaign, with_campaign_gates

_MAX_DF = 400
_TEXTS = (
    ("log", "server.log.gz", parse_server_log),
    ("before", "metrics_before.txt.gz", parse_metrics),
    ("after", "metrics_after.txt.gz", parse_metrics),
)
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


@dataclass(frozen=True)
class LoadSummary:
    """What was loaded. `runs` counts attempts; `counted` those that the figures rest on."""

    database: Path
    runs: int
    counted: int
    primes: int
    unreadable: tuple[str, ...]  # their names

    def __str__(self) -> str:
        names = f"{', '.join(self.unreadable)} (next: `campaign validate` says why)"
        lost = f", {len(self.unreadable)} unreadable: {names}" if self.unreadable else ""
        return f"{self.database}: {self.runs} runs ({self.counted} counted), {self.primes} primes{lost}"


def load(results: Path, database: Path) -> LoadSummary:
    """Load `results` (the folder of one campaign) into `database`, replacing it when all is in.

    Raises LoadError if the folder is no results folder or the database cannot be written.
    """
    header = read_campaign(results)
    configuration = header["configuration"]
    temporary = database.with_name(database.name + ".loading")
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with connect(temporary, read_only=False) as con:
            con.execute(SCHEMA_SQL.read_text(encoding="utf-8"))
            con.execute(TELEMETRY_SQL.read_text(encoding="utf-8"))
            con.execute("CREATE TABLE run_telemetry AS FROM telemetry_facts LIMIT 0")
            campaign = [header["campaign"], json.dumps(configuration, sort_keys=True)]
            con.execute("INSERT INTO campaign VALUES (?, ?)", campaign)
            for path in sorted((results / "sittings").glob("*/provenance.json")):
                _all_or_nothing(con, path.parent, partial(_insert_sitting, con, path))
            for path in sorted((results / "loops").glob("*.json")):
                _all_or_nothing(con, path, partial(_insert_loop, con, path))
            verdicts = []
            for verdict in judge_each(results):  # its evidence is dropped before the next run's is read
                if _all_or_nothing(con, verdict.folder, partial(_insert_run, con, verdict)):
                    verdicts.append(replace(verdict, evidence=None))
            for verdict in with_campaign_gates(results, configuration, verdicts):
                _insert_verdict(con, verdict)
            quantiles = [(df, float(stdtrit(df, 0.975))) for df in range(1, _MAX_DF + 1)]
            _insert(con, "student_t", ("df", "t975"), quantiles)
            con.execute(VIEWS_SQL.read_text(encoding="utf-8"))
            add_study(con, results)
            ((runs, counted, primes),) = con.execute("SELECT attempts, counted, primes FROM summary").fetchall()
            unreadable = tuple(place for (place,) in con.execute("SELECT folder FROM unreadable ORDER BY 1").fetchall())
        temporary.replace(database)
    except (OSError, duckdb.IOException) as error:
        raise LoadError(f"{database} cannot be written: {error}", "choose another path with --database") from error
    finally:
        for leftover in (temporary, temporary.with_name(temporary.name + ".wal")):
            with suppress(OSError):
                leftover.unlink()
    return LoadSummary(database, runs, counted, primes, unreadable)


def _all_or_nothing(con: _Connection, folder: Path, insert: Callable[[], None]) -> bool:
    """All of a folder (True) or, when something in it cannot be read, none of it and a row in `unreadable`."""
    con.begin()
    try:
        insert()
    except (OSError, EOFError, ValueError, duckdb.Error) as error:
        con.rollback()
        place = f"{folder.parent.name}/{folder.name}"
        con.execute(
            "INSERT INTO unreadable VALUES (?, ?)", [place, str(error).replace(str(folder), place).splitlines()[0]]
        )
        return False
    con.commit()
    return True


def _insert_sitting(con: _Connection, path: Path) -> None:
    provenance = json.loads(path.read_text(encoding="utf-8"))
    con.execute("INSERT INTO sittings VALUES (?, ?)", [path.parent.name, json.dumps(provenance, sort_keys=True)])


def _insert_loop(con: _Connection, path: Path) -> None:
    loop = json.loads(path.read_text(encoding="utf-8"))
    columns = con.table("loop_runs").columns
    rows = [{**loop, **run, "loop": path.stem} for run in loop["runs"]]
    _insert(con, "loop_runs", columns, [[row.get(column) for column in columns] for row in rows])


def _insert_run(con: _Connection, verdict: Verdict) -> None:
    folder, record, evidence = verdict.folder, verdict.record, verdict.evidence
    if record is None:
        raise ValueError(verdict.reasons[0].evidence)
    if evidence is None:  # a failed run, which is not judged
        evidence = Evidence(record, **{name: _parsed(folder / file, parse) for name, file, parse in _TEXTS})
    values = _attempt(evidence, folder)
    columns = [name for name in con.table("attempts").columns if name in values]
    _insert(con, "attempts", columns, [[values[name] for name in columns]])
    for table in ("requests", "steps", "telemetry"):
        insert_parquet(con, folder, table)
    if evidence.telemetry:
        facts = {"folder": folder.name} | asdict(evidence.telemetry)
        _insert(con, "run_telemetry", list(facts), [list(facts.values())])
    for moment, metrics in (("before", evidence.before), ("after", evidence.after)):
        samples = metrics.as_rows() if metrics else []
        rows = [(folder.name, moment, *sample) for sample in samples if not sample[0].endswith("_created")]
        _insert(con, "metrics", ("folder", "moment", "name", "labels", "value"), rows)


def _insert_verdict(con: _Connection, verdict: Verdict) -> None:
    folder = verdict.folder.name
    con.execute("UPDATE attempts SET status = ? WHERE folder = ?", [verdict.status, folder])
    judged = verdict.reasons if verdict.status != "failed" else ()  # a failure stands in `attempts`
    reasons = [(folder, r.code, r.severity, r.evidence, r.advice) for r in judged]
    _insert(con, "reasons", ("folder", "code", "severity", "evidence", "advice"), reasons)


def _parsed(path: Path, parse: Callable[[str], Any]) -> Any:
    with suppress(ValueError):  # what cannot be read may be why the run failed
        return parse(gunzip(path)) if path.is_file() else None
    return None


def _attempt(evidence: Evidence, folder: Path) -> dict[str, Any]:
    """What a row of `attempts` is taken from: the record flattened, the server log's facts, the client's scalars."""
    record, bench = evidence.record, folder / "bench.json"
    plain = record.model_dump(mode="json")
    facts = evidence.log.to_dict() if evidence.log else record.server_log
    scalars = json.loads(bench.read_text(encoding="utf-8")) if bench.is_file() else {}
    if not isinstance(scalars, dict):
        raise ValueError("bench.json is not one JSON object")
    return {
        **facts,
        **plain,
        **plain["timeline"],
        **{f"gpu_{key}": value for key, value in (plain["gpu"] or {}).items()},
        **{f"engine_{key}": value for key, value in plain["engine"].items()},
        "simulated": record.engine.simulated,
        "kv_block_tokens": next((m.block_size for m in (evidence.after, evidence.before) if m and m.block_size), None),
        **{column: scalars.get(key) for column, key in _BENCH.items()},
    }


def _insert(con: _Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows in one statement: a list a column, unnested side by side."""
    if rows:
        names, marks = ", ".join(columns), ", ".join("unnest(?)" for _ in columns)
        values = [list(column) for column in zip(*rows, strict=True)]
        con.execute(f"INSERT INTO {table} ({names}) SELECT {marks}", values)
