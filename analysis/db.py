"""The DuckDB database: how it is opened, and the report's tables, one .sql file each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from analysis.errors import LoadError

_HERE = Path(__file__).parent
SCHEMA_SQL = _HERE / "schema.sql"
VIEWS_SQL = _HERE / "views.sql"
TELEMETRY_SQL = _HERE / "telemetry.sql"
TABLES = _HERE / "tables"
CHARTS = _HERE / "charts"
PROVENANCE = _HERE / "provenance"  # tables of PROVENANCE.md
FINDINGS = _HERE / "findings"  # tables of FINDINGS.md, besides some of the report
_HINT = "`campaign load RESULTS --database FILE` makes one, of e.g. results/enforce_eager"
_SETTINGS = (
    "SET threads = 1; SET preserve_insertion_order = true; SET enable_progress_bar = 0; SET memory_limit = '500MiB'"
)


@dataclass(frozen=True)
class Table:
    """A table of the report: name (of its file), heading texts from the comments at its top, SQL, rows."""

    name: str
    sql: str
    columns: tuple[str, ...]
    estimates: frozenset[str]  # columns that hold {mean, lo, hi, n}
    rows: tuple[tuple[Any, ...], ...]
    title: str
    note: str = ""
    empty: str = "No rows."
    chart: str = ""
    part: str = ""  # of the report, named by the part's first table


def connect(database: Path, *, read_only: bool = True) -> duckdb.DuckDBPyConnection:
    """Open a database. One thread, so that sums are added in one order and equal inputs give equal bytes; beyond its
    memory limit DuckDB goes on in a folder beside the database.

    Raises LoadError when there is none, or it is not one or, to be read, none of this version's.
    """
    if read_only and not database.is_file():
        raise LoadError(f"{database}: {'a folder, no' if database.is_dir() else 'no such'} database", _HINT)
    try:
        con = duckdb.connect(str(database), read_only=read_only)
        con.execute(f"{_SETTINGS}; FROM summary LIMIT 0; FROM claims LIMIT 0" if read_only else _SETTINGS)
    except (duckdb.CatalogException, duckdb.BinderException) as error:
        raise LoadError(f"{database}: not made by this version's `campaign load`", _HINT) from error
    except duckdb.Error as error:
        hint = "end the program that has it open, then try again" if "lock on file" in str(error) else _HINT
        raise LoadError(f"{database} cannot be opened as a database: {error}", hint) from error
    return con


def read_tables(con: duckdb.DuckDBPyConnection, folder: Path = TABLES) -> list[Table]:
    """Run every .sql file of `folder` in order of name. Raises LoadError naming the file that fails."""
    return [_read_table(con, path) for path in sorted(folder.glob("*.sql"))]


def read_head(path: Path) -> tuple[dict[str, str], str]:
    """The `-- key: value` lines at the top of an .sql file, and the rest."""
    body, head = path.read_text(encoding="utf-8"), dict[str, str]()
    while body.startswith("-- "):
        line, _, body = body.partition("\n")
        key, _, value = line[3:].partition(": ")
        head[key] = value
    return head, body.strip()


def run_sql(con: duckdb.DuckDBPyConnection, path: Path, sql: str) -> duckdb.DuckDBPyConnection:
    """Raises LoadError naming the file that fails."""
    try:
        return con.execute(sql)
    except duckdb.Error as error:
        raise LoadError(f"{path.name}: {error}", "load the results again with this version") from error


def _read_table(con: duckdb.DuckDBPyConnection, path: Path) -> Table:
    head, sql = read_head(path)
    cursor = run_sql(con, path, sql)
    columns = [(name, str(kind)) for name, kind, *_ in cursor.description or ()]
    return Table(
        name=path.stem,
        sql=sql,
        columns=tuple(name for name, _ in columns),
        estimates=frozenset(name for name, kind in columns if kind.startswith("STRUCT")),
        rows=tuple(cursor.fetchall()),
        **head,
    )
