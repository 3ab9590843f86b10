"""PROVENANCE.md: what the runs of a results folder ran on, from its sittings. `make provenance` writes it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from analysis.errors import LoadError
from analysis.evidence import fact_at
from analysis.validate import Verdict, judge_results, read_campaign
from report.cells import markdown

_TITLES = {
    "machine": "Machine", "gpu": "GPU and driver", "engine": "Engine", "models": "Models", "runner": "Runner",
}  # fmt: skip


def render_provenance(results: Path) -> str:
    """The Markdown text. Raises LoadError: not a results folder, or a sitting's provenance.json cannot be read."""
    name, _ = read_campaign(results)
    sittings = {path.parent.name: _read(path) for path in sorted((results / "sittings").glob("*/provenance.json"))}
    for found in sittings.values():
        if fact_at(found, "engine.launcher") == "process":
            found["engine"].pop("image", None)  # configured, not used
    short = {sitting: f"S{number}" for number, sitting in enumerate(sittings, 1)}
    lines = [f"# Provenance of {markdown(name)}", ""]
    lines += [
        f"Made from the sittings in `results/{results.resolve().name}` by `make provenance`; not edited by hand.",
        "",
    ]
    lines += _table(
        ("sitting", "", "begun, UTC", "GPU", "runs", "primes", "not valid"), _sittings(short, sittings, results)
    )
    lines += ["", "## What must agree", ""]
    lines += [
        "Runs of sittings that differ in one of these facts are never pooled or compared: they get setups of their own."
    ]
    keys = sorted({key for found in sittings.values() for key in found.get("must_agree") or ()})
    agree = {sitting: {key: fact_at(found, key) for key in keys} for sitting, found in sittings.items()}
    lines += ["", *_table(("fact", "value", "sittings"), _facts(agree, short))]
    for part, title in _TITLES.items():
        found = {sitting: dict(_flat(whole.get(part))) for sitting, whole in sittings.items()}
        lines += ["", f"## {title}", "", *_table(("fact", "value", "sittings"), _facts(found, short))]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise LoadError(f"{path} cannot be read: {error}", "restore it from a copy") from error


def _sittings(short: dict[str, str], found: dict[str, dict[str, Any]], results: Path) -> Iterator[tuple[Any, ...]]:
    by_sitting: dict[str, list[Verdict]] = {sitting: [] for sitting in found}
    for verdict in judge_results(results):
        if verdict.record and verdict.record.sitting_id in by_sitting:
            by_sitting[verdict.record.sitting_id].append(verdict)
    for sitting, verdicts in by_sitting.items():
        kinds = Counter(v.record.kind for v in verdicts if v.record and v.status == "valid")
        gpu = fact_at(found[sitting], "gpu.uuid") or "none"
        bad = sum(v.status != "valid" for v in verdicts)
        yield short[sitting], sitting, found[sitting].get("collected"), gpu, kinds["run"], kinds["prime"], bad


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by path with dots; a file, and a list of packages, are one leaf."""
    if isinstance(value, dict) and value.keys() == {"bytes", "sha256"}:
        yield key, f"{value['bytes']} bytes, SHA-256 {value['sha256'] or 'not taken'}"
    elif isinstance(value, dict) and key == "packages":
        yield key, ", ".join(f"{name} {version}" for name, version in sorted(value.items()))
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _flat(part, f"{key}.{name}" if key else name)
    elif key:
        yield key, ", ".join(map(str, value)) or "none" if isinstance(value, list) else value


def _facts(found: dict[str, dict[str, Any]], short: dict[str, str]) -> Iterator[tuple[str, Any, str]]:
    """A row a value: facts on which all sittings agree, then the others."""
    rows = []
    for key in dict.fromkeys(key for facts in found.values() for key in facts):
        values: dict[str, list[str]] = {}
        for sitting, facts in found.items():
            shown = "not reported" if facts.get(key) is None else str(facts[key])
            values.setdefault(shown, []).append(short[sitting])
        rows += [(key, shown, "all" if len(values) == 1 else ", ".join(where)) for shown, where in values.items()]
    yield from sorted(rows, key=lambda row: row[2] != "all")


def _table(header: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> list[str]:
    lines = [header, ["---"] * len(header), *([markdown(str(cell)) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


if __name__ == "__main__":
    sys.stdout.write(render_provenance(Path(sys.argv[1])))
