"""The verdict on a run: judged anew from its raw files with today's gates, alone and together with its campaign.

The runner, `campaign validate` and the load share it, so that a gate of a later version holds for older data too.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from analysis.errors import LoadError
from analysis.evidence import fact_at, read_evidence, read_provenance, read_record
from analysis.formats.run_record import Reason, RunRecord
from analysis.gate import Evidence
from analysis.gates import judge
from analysis.gates_campaign import Campaign, judge_together
from analysis.processes import spread

STORE_SCHEMA_VERSION = 1  # of campaign.json
_DATABASE = "; `report`, `check` and `advise` take a loaded database with --database"
_AT_ONCE = 16  # folders whose rows are in memory
_WAITING = 16  # as many of these, judged, at most: 230 KiB a folder
EXIT_VALID, EXIT_UNREADABLE, EXIT_SOME_INVALID = 0, 2, 3


@dataclass(frozen=True)
class Verdict:
    """`record` is None and `status` unreadable where run.json or a file that it lists cannot be read as it was written.
    A failed run is not judged: its one reason is the failure. `evidence`: what a run judged by itself was judged on,
    without steps and requests."""

    folder: Path
    status: Literal["valid", "invalid", "failed", "unreadable"]
    reasons: tuple[Reason, ...] = ()
    record: RunRecord | None = None
    evidence: Evidence | None = field(default=None, compare=False, repr=False)

    @property
    def place(self) -> str:
        """runs/<folder> or primes/<folder>."""
        return f"{self.folder.parent.name}/{self.folder.name}"


def judge_run(folder: Path, record: RunRecord) -> Verdict:
    """The verdict on one folder by itself. Raises OSError, EOFError, ValueError or zlib.error when a file of it
    cannot be read."""
    return _judge([(folder, record)])[0]


def judge_results(results: Path) -> list[Verdict]:
    """The verdict on every run and prime of a results folder, in order of name. Raises LoadError: not such a folder."""
    configuration = read_campaign(results)["configuration"]
    judged = [replace(v, evidence=None) for some in judge_each(results) for v in some]
    return with_campaign_gates(results, configuration, judged)


def folders_in(results: Path) -> list[Path]:
    """Of runs and primes, in order of name, without those being written."""
    found = sorted((*(results / "runs").glob("*"), *(results / "primes").glob("*")))
    return [folder for folder in found if folder.is_dir() and not folder.name.endswith(".partial")]


def judge_each(results: Path) -> Iterator[list[Verdict]]:
    """The verdict on every run and prime by itself, in order of name, some at a time."""
    folders = folders_in(results)
    batches = [folders[begin : begin + _AT_ONCE] for begin in range(0, len(folders), _AT_ONCE)]
    with spread(len(folders)) as each:
        for begin in range(0, len(batches), _WAITING):
            yield from each(_read, batches[begin : begin + _WAITING])


def with_campaign_gates(results: Path, configuration: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts with what the gates on several runs add to them, of those that are valid by themselves."""
    good = tuple(v.record for v in verdicts if v.record and v.status == "valid")
    provenance = {sitting: read_provenance(results, sitting) for sitting in sorted({r.sitting_id for r in good})}
    keys = sorted({key for found in provenance.values() for key in found.get("must_agree") or ()})
    agree = {sitting: json.dumps([fact_at(found, key) for key in keys]) for sitting, found in provenance.items()}
    found = judge_together(Campaign(good, configuration, agree))
    return [_with(v, found[v.folder.name]) if v.status == "valid" and v.folder.name in found else v for v in verdicts]


def validate(path: Path) -> list[Verdict]:
    """The verdicts on one run's folder, or on a whole results folder. Raises LoadError when it is neither or empty."""
    if (path / "run.json").is_file():
        return _read([path.resolve()])
    verdicts = judge_results(path)
    if not verdicts:
        raise LoadError(f"{path} holds no runs", "run a campaign first")
    return verdicts


def read_campaign(results: Path) -> dict[str, Any]:
    """campaign.json of a results folder. Raises LoadError when there is none or it cannot be read."""
    path = results / "campaign.json"
    try:
        header = dict(json.loads(path.read_bytes()))
        if header["schema_version"] != STORE_SCHEMA_VERSION:
            raise ValueError(f"schema_version {header['schema_version']!r} is not {STORE_SCHEMA_VERSION}")
        return header | {"campaign": str(header["campaign"]), "configuration": dict(header["configuration"])}
    except (FileNotFoundError, NotADirectoryError) as error:
        given = "it has no campaign.json" if results.is_dir() else "a file" if results.exists() else "no such folder"
        hint = "give a results folder that is there, e.g. results/enforce_eager"
        if results.is_file():
            hint += _DATABASE
        raise LoadError(f"{results} is not a results folder: {given}", hint) from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise LoadError(f"{path} cannot be read: {error}", "restore it from a copy") from error


def exit_code(verdicts: Sequence[Verdict]) -> int:
    statuses = {verdict.status for verdict in verdicts}
    if "unreadable" in statuses:
        return EXIT_UNREADABLE
    return EXIT_VALID if statuses <= {"valid"} else EXIT_SOME_INVALID


def as_json(verdicts: Sequence[Verdict]) -> str:
    rows = [
        {"run": v.place, "status": v.status, "reasons": [reason.model_dump() for reason in v.reasons]} for v in verdicts
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False)


def as_text(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A line a run, two a reason, and the counts."""
    for verdict in verdicts:
        yield f"{verdict.status:10} {verdict.place}"
        for reason in verdict.reasons:
            yield f"{'':10}   {reason.severity} {reason.code}: {reason.evidence}"
            yield f"{'':10}   next: {reason.advice}"
    kinds = ("valid", "invalid", "failed", "unreadable")
    counts = {kind: sum(v.status == kind for v in verdicts) for kind in kinds}
    warned = sum(v.status == "valid" and bool(v.reasons) for v in verdicts)
    yield ", ".join(f"{n} {kind}" for kind, n in counts.items() if n) + f"; {warned} of the valid with warnings"


def _with(verdict: Verdict, more: tuple[Reason, ...]) -> Verdict:
    reasons = (*verdict.reasons, *more)
    invalid = any(reason.severity == "invalid" for reason in reasons)
    return replace(verdict, status="invalid" if invalid else verdict.status, reasons=reasons)


def _judge(runs: Sequence[tuple[Path, RunRecord]]) -> list[Verdict]:
    evidence = read_evidence([run for run in runs if run[1].status != "failed"])
    return [_failed(*run) if run[1].status == "failed" else _judged(run[0], next(evidence)) for run in runs]


def _judged(folder: Path, evidence: Evidence) -> Verdict:
    kept = replace(evidence, steps=None, bench=None)  # without what is large
    return _with(Verdict(folder, "valid", (), evidence.record, kept), judge(evidence))


def _failed(folder: Path, record: RunRecord) -> Verdict:
    code, message = record.failure_class or "failed", record.failure_message or "no message"
    advice = "Start the campaign again: it retries the run."
    reason = Reason(code=code, severity="invalid", evidence=message, advice=advice)
    return Verdict(folder, "failed", (reason,), record)


def _read(folders: Sequence[Path]) -> list[Verdict]:
    """The verdicts on folders: together or, when one of them cannot be read, each by itself."""
    try:
        return _judge([(folder, read_record(folder)) for folder in folders])
    except (OSError, EOFError, ValueError, zlib.error, RecursionError) as error:
        if len(folders) > 1:
            return [verdict for folder in folders for verdict in _read([folder])]
        (folder,) = folders
        problem = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            problem = f"run.json: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        problem = problem.replace(str(folder), f"{folder.parent.name}/{folder.name}").splitlines()[0]
        advice = "Restore the folder from a copy, or remove it, then start the campaign again."
        reason = Reason(code="unreadable", severity="invalid", evidence=problem, advice=advice)
        return [Verdict(folder, "unreadable", (reason,))]
