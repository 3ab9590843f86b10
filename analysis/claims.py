"""The published study beside the data: its figures and claims into the database, and every claim judged there.

`published.toml` holds the study's figures, `claims.toml` its claims as SQL. `expected-claims.toml` of a results folder,
if it has one, lists by verdict (`reproduced`, `not_reproduced`, `not_testable`) the claims of which the data set
declares it.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import duckdb

from analysis.db import connect
from analysis.errors import LoadError
from analysis.staircase import add_staircase

_HERE = Path(__file__).parent
_SETUPS = "SELECT DISTINCT setup FROM runs WHERE counted AND kind = 'run' ORDER BY ALL"
_COLUMNS = "setup, id, verdict, reason, expected, differs"
_LEFT_OUT = """SELECT concat('; ' || nullif(set_aside, 0) || ' runs set aside',
                             '; ' || nullif(unreadable, 0) || ' unreadable') FROM summary"""


def add_study(con: duckdb.DuckDBPyConnection, results: Path) -> None:
    """Fill the tables of published.sql and the scheduling model's. Raises LoadError for one that is of no use."""
    claims, expected = _toml(_HERE / "claims.toml")["claim"], results / "expected-claims.toml"
    declared = _toml(expected) if expected.is_file() else {}
    known = {claim["id"] for claim in claims}
    for verdict, ids in declared.items():
        if verdict not in ("reproduced", "not_reproduced", "not_testable") or not known.issuperset(ids):
            unknown = ", ".join(sorted(set(ids) - known))
            problem = f"no such claim: {unknown}" if unknown else "no such verdict"
            raise LoadError(f"{expected}: {verdict}: {problem}", "see analysis/claims.toml")
    for name, content in (("published", _toml(_HERE / "published.toml")), ("claims", claims), ("expected", declared)):
        con.execute(f"SET VARIABLE {name} = ?", [json.dumps(content)])
    con.execute((_HERE / "published.sql").read_text(encoding="utf-8"))
    add_staircase(con)
    for (setup,) in con.execute(_SETUPS).fetchall():
        con.execute("SET VARIABLE setup = ?", [setup])
        for claim in claims:
            try:
                con.execute(f"INSERT INTO claim_values SELECT ?, ?, ({claim['sql']})", [setup, claim["id"]])
            except duckdb.Error as error:
                raise LoadError(f"claims.toml: {claim['id']}: {error}", "correct its sql") from error


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LoadError(f"{path}: {error}", "correct it") from error


def check(database: Path) -> tuple[str, bool]:
    """Every claim's verdict as text, and whether all that the data set declares hold."""
    with connect(database) as con:
        rows = con.execute(f"SELECT {_COLUMNS} FROM claims ORDER BY ALL").fetchall()
        left_out = con.execute(_LEFT_OUT).fetchone() or ("",)
    lines = []
    for setup, name, verdict, reason, expected, differs in rows:
        note = f"DIFFERS: declared {expected}." if differs else "as the data declares." if expected else "not declared."
        lines.append(f"{setup}: {name:40} {verdict:15} {note} {reason}".rstrip())
    counts = [f"{sum(row[2] == v for row in rows)} {v}" for v in ("reproduced", "not reproduced", "not testable")]
    differing = sum(row[5] for row in rows)
    declared = f"{sum(row[4] is not None for row in rows)} declared by the data set, {differing} differ"
    return "\n".join([*lines, f"{', '.join(counts)}; {declared}{left_out[0]}"]), differing == 0
