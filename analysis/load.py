"""A results folder into DuckDB: explicit column types, rebuilt whole, and put in place in one rename.

Reads what docs/result-files.md describes; each run is judged anew (validate.py). The content does not depend on the
order in which the file system lists folders. A folder that cannot be read is listed in `unreadable` and does not hinder
the others.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from analysis.claims import add_study
from analysis.db import SCHEMA_SQL, TELEMETRY_SQL, VIEWS_SQL, connect, run_sql
from analysis.errors import LoadError
from analysis.evidence import PARQUET, insert, insert_parquet
from analysis.gate import Evidence
from analysis.processes import prepare
from analysis.validate import Verdict, folders_in, judge_each, read_campaign, with_campaign_gates

_MAX_DF = 400
_ELSEWHERE = "choose another path with --database (of a report --out)"
_BENCH = {f"bench_{key}": key for key in ("completed", "failed", "mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms")}
_BENCH |= {"bench_duration_s": "duration", "bench_output_tok_s": "output_throughput"}
_BENCH |= {f"bench_{tokens}": f"total_{tokens}" for tokens in ("input_tokens", "output_tokens")}
_SAMPLE = ("folder", "moment", "name", "labels", "value")  # columns of the table metrics
_SUMMARY_SQL = Path(__file__).with_name("load_summary.sql")
_Connection = duckdb.DuckDBPyConnection
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class LoadSummary:
    """What was loaded. `runs` counts attempts; `counted` those that the figures rest on; `lost` says how many do not,
    and why."""

    database: Path
    runs: int
    counted: int
    primes: int
    lost: str

    def __str__(self) -> str:
        lost = f", {self.lost} (next: the report's table of runs set aside; `campaign validate`)" if self.lost else ""
        return f"{self.database}: {self.runs} runs ({self.counted} counted), {self.primes} primes{lost}"


def check_target(results: Path, database: Path) -> Path:
    """Make the folder of `database`; the name under which it is written first. Raises LoadError where it cannot be
    written, a file or database that no load made would be lost, or it lies in `results`."""
    temporary = database.with_name(database.name + ".loading")
    if database.resolve().is_relative_to(results.resolve()):
        raise LoadError(f"{database} lies in the results folder {results}", _ELSEWHERE)
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        for path, is_ours in ((database, _is_loaded), (temporary, _is_database)):
            if path.exists() and not (path.is_file() and is_ours(path)):
                raise LoadError(f"{path} is no database of `campaign load`, or in use: it is kept", _ELSEWHERE)
        if not os.access(database.parent, os.W_OK | os.X_OK):
            raise PermissionError(f"no right to write in {database.parent}")
    except OSError as error:
        raise LoadError(f"{database} cannot be written: {error}", _ELSEWHERE) from error
    return temporary


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(12)[8:] == b"DUCK"


def _is_loaded(path: Path) -> bool:
    """Whether it is what some version's load made."""
    with suppress(duckdb.Error), duckdb.connect(str(path), read_only=True) as con:
        return bool(con.execute("FROM duckdb_tables() WHERE table_name = 'attempts'").fetchall())
    return False


def load(results: Path, database: Path) -> LoadSummary:
    """Load `results` (the folder of one campaign) into `database`, replacing one that is there when all is in.

    Raises LoadError if the folder is no results folder or the database cannot be written.
    """
    header = read_campaign(results)
    configuration = header["configuration"]
    temporary = check_target(results, database)
    prepare(len(folders_in(results)))
    from scipy.special import stdtrit  # takes a while; and a GPU host that only measures has no SciPy

    try:
        temporary.unlink(missing_ok=True)
        with connect(temporary, read_only=False) as con:
            tables = SCHEMA_SQL.read_text(encoding="utf-8") + TELEMETRY_SQL.read_text(encoding="utf-8")
            con.execute(f"BEGIN; {tables} CREATE TABLE run_telemetry AS FROM telemetry_facts LIMIT 0; COMMIT")
            campaign = [header["campaign"], json.dumps(configuration, sort_keys=True)]
            con.execute("INSERT INTO campaign VALUES (?, ?)", campaign)
            sitting_files = sorted(results.glob("sittings/*/provenance.json"))
            _all_or_nothing(con, {path.parent: path for path in sitting_files}, _insert_sittings)
            _all_or_nothing(con, {path: path for path in sorted(results.glob("loops/*.json"))}, _insert_loops)
            verdicts: list[Verdict] = []
            for some in judge_each(results):  # their evidence is dropped before the next ones' is read
                read = _all_or_nothing(con, {verdict.folder: verdict for verdict in some}, _insert_runs)
                verdicts += [replace(verdict, evidence=None) for verdict in read]
            con.begin()  # what is committed by itself waits for the disk each time
            _insert_verdicts(con, with_campaign_gates(results, configuration, verdicts))
            quantiles = [{"df": df, "t975": float(stdtrit(df, 0.975))} for df in range(1, _MAX_DF + 1)]
            insert(con, "student_t", quantiles)
            con.execute(VIEWS_SQL.read_text(encoding="utf-8"))
            add_study(con, results)
            con.commit()
        temporary.replace(database)
    except (OSError, duckdb.IOException) as error:
        raise LoadError(f"{database} cannot be written: {error}", _ELSEWHERE) from error
    finally:
        for leftover in (temporary, temporary.with_name(temporary.name + ".wal")):
            with suppress(OSError):
                leftover.unlink()
    return summarise(database)


def summarise(database: Path) -> LoadSummary:
    """What a database holds. Raises LoadError: none, or of another version."""
    with connect(database) as con:
        facts = run_sql(con, database, _SUMMARY_SQL.read_text(encoding="utf-8")).fetchone() or ()
        return LoadSummary(database, *facts)


def sittings(results: Path | None, database: Path) -> set[str]:
    """The ids of a results folder or else a database. Raises LoadError when it is none."""
    if results is not None:
        read_campaign(results)
        return {path.name for path in (results / "sittings").glob("*")}
    with connect(database) as con:
        return {name for (name,) in run_sql(con, database, "SELECT sitting_id FROM attempts").fetchall()}


def _all_or_nothing(
    con: _Connection, items: Mapping[Path, _Item], into: Callable[[_Connection, Sequence[_Item]], None]
) -> list[_Item]:
    """Of each folder all or, when something in it cannot be read, nothing and a row in `unreadable`. Returns what was
    inserted: together or, should that fail, one by one."""
    con.begin()
    try:
        into(con, list(items.values()))
    except (OSError, EOFError, ValueError, duckdb.Error) as error:
        con.rollback()
        if len(items) > 1:
            return [done for folder, item in items.items() for done in _all_or_nothing(con, {folder: item}, into)]
        (folder,) = items
        place = f"{folder.parent.name}/{folder.name}"
        problem = str(error).replace(str(folder), place).splitlines()[0]
        con.execute("INSERT INTO unreadable VALUES (?, ?)", [place, problem])
        return []
    con.commit()
    return list(items.values())


def _insert_sittings(con: _Connection, paths: Sequence[Path]) -> None:
    found = [(path.parent.name, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    rows = [{"sitting_id": name, "provenance": json.dumps(content, sort_keys=True)} for name, content in found]
    insert(con, "sittings", rows)


def _insert_loops(con: _Connection, paths: Sequence[Path]) -> None:
    for path in paths:
        loop = json.loads(path.read_text(encoding="utf-8"))
        insert(con, "loop_runs", [{**loop, **run, "loop": path.stem} for run in loop["runs"]])


def _insert_runs(con: _Connection, verdicts: Sequence[Verdict]) -> None:
    attempts, facts, samples = [], [], []
    for verdict in verdicts:
        folder, record = verdict.folder, verdict.record
        if record is None:
            raise ValueError(verdict.reasons[0].evidence)
        evidence = verdict.evidence or Evidence(record)  # a failed run is not judged: what its record says
        attempts.append(_attempt(evidence, folder))
        if evidence.telemetry:
            facts.append({"folder": folder.name} | asdict(evidence.telemetry))
        for moment, metrics in (("before", evidence.before), ("after", evidence.after)):
            for row in metrics.as_rows() if metrics else ():
                samples.append(dict(zip(_SAMPLE, (folder.name, moment, *row), strict=True)))
    for table in PARQUET:
        insert_parquet(con, table, [verdict.folder for verdict in verdicts])
    for table, rows in (("attempts", attempts), ("run_telemetry", facts), ("metrics", samples)):
        insert(con, table, rows)


def _insert_verdicts(con: _Connection, verdicts: Sequence[Verdict]) -> None:
    judged = [[v.folder.name for v in verdicts], [v.status for v in verdicts]]
    rows = "(SELECT unnest(?::VARCHAR[]) AS folder, unnest(?::VARCHAR[]) AS status)"
    con.execute(f"UPDATE attempts SET status = j.status FROM {rows} j WHERE attempts.folder = j.folder", judged)
    fired = [(v, r) for v in verdicts for r in v.reasons if v.status != "failed"]  # a failure stands in `attempts`
    insert(con, "reasons", [{"folder": verdict.folder.name, **reason.model_dump()} for verdict, reason in fired])


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
