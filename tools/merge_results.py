#!/usr/bin/env python3
"""Take what came back from other machines or workers into one results folder.

    merge_results.py INTO FROM [FROM ...]     e.g. merge_results.py results/enforce_eager back/results-0 back/results-1

Copies runs/, primes/, sittings/ and loops/. What INTO holds already with the same content is passed over (a resumed
sitting brings earlier runs along). Refused: the same name with other content, another campaign, a configuration in
which something that was measured has changed, a run whose files are not those of its record. INTO takes the
configuration with more models, arms and profiles. Nothing is copied unless all can be; cut off, do it again.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from filecmp import dircmp
from pathlib import Path

from analysis.evidence import fact_at, read_provenance, read_record
from runner.config import Config, changed_keys, config_fingerprint, load_config
from runner.errors import CampaignError, StoreError
from runner.store import Store, read_header

RUNS = ("runs", "primes")


def merge(into: Path, sources: list[Path]) -> list[Path]:
    """The places, relative to `into`, that were copied. Raises CampaignError before anything is."""
    config = _newest([*([into] if (into / "campaign.json").exists() else []), *sources])
    copies: dict[Path, Path] = {}  # by place in INTO, from where
    for source in sources:
        for path in _finished(source):
            place = path.relative_to(source)
            _check(path, place, config)
            for other in (into / place, copies.get(place, path)):
                if other.exists() and not _same(path, other):
                    raise StoreError(
                        f"{path} and {other} are different runs of one name",
                        "keep one and move the other out of its folder",
                    )
            if not (into / place).exists():
                copies[place] = path
    with Store.open(into, config):  # locked, its configuration compared once more
        for place, path in copies.items():
            partial = into / place.with_name(f"{place.name}.partial")
            partial.parent.mkdir(exist_ok=True)
            if partial.exists():
                shutil.rmtree(partial)
            shutil.copytree(path, partial) if path.is_dir() else shutil.copyfile(path, partial)
            partial.rename(into / place)
    return sorted(copies)


def _newest(folders: list[Path]) -> Config:
    """The configuration that holds all the others'. Raises ConfigError or StoreError."""
    newest: Config | None = None
    for folder in folders:
        header, config = read_header(folder), load_config(folder / "campaign.toml")
        if changed := changed_keys(header["configuration"], config_fingerprint(config)):
            raise StoreError(
                f"{folder}: campaign.toml and campaign.json differ in {', '.join(changed)}", "restore both"
            )
        if newest is None or not changed_keys(config_fingerprint(newest), config_fingerprint(config)):
            newest = config
        elif changed := changed_keys(config_fingerprint(config), config_fingerprint(newest)):
            raise StoreError(
                f"{folder} was measured with another configuration than {newest.path.parent}; it differs in "
                + ", ".join(changed),
                "give it a folder of its own: these runs must not be pooled",
            )
    assert newest is not None
    return newest


def _finished(source: Path) -> Iterator[Path]:
    for name in (*RUNS, "sittings", "loops"):
        yield from sorted(path for path in (source / name).glob("*") if path.suffix not in (".partial", ".tmp"))


def _check(path: Path, place: Path, config: Config) -> None:
    if place.parts[0] not in RUNS:
        return
    try:
        campaign = read_record(path).campaign
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: {error}", "restore it from a copy, or move it out of its folder") from None
    if campaign != config.campaign.name:
        raise StoreError(f"{path} belongs to the campaign {campaign}, not {config.campaign.name}", "see its run.json")


def _same(one: Path, other: Path) -> bool:
    if one.is_file():
        return other.is_file() and one.read_bytes() == other.read_bytes()
    found = dircmp(one, other)
    if found.left_only or found.right_only:
        return False
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in found.common_files)


def differing(into: Path) -> list[str]:
    """Facts that must agree and do not: runs of sittings that differ in them are never pooled."""
    found = {path.name: read_provenance(into, path.name) for path in sorted((into / "sittings").iterdir())}
    keys = sorted({key for provenance in found.values() for key in provenance.get("must_agree") or ()})
    return [key for key in keys if len({str(fact_at(provenance, key)) for provenance in found.values()}) > 1]


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    into, *sources = map(Path, arguments)
    try:
        copied = merge(into, sources)
    except CampaignError as error:
        print(f"error: {error.message}\nnext: {error.hint}", file=sys.stderr)
        return 2
    for place in copied:
        print(place)
    print(f"{into}: {len(copied)} taken in")
    for key in differing(into):
        print(f"warning: sittings differ in {key}: their runs stand apart in the report", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
