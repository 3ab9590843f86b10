"""The results folder of one campaign: its lock, its configuration, and run folders that appear whole or not at all."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from analysis.errors import LoadError
from analysis.evidence import check_files
from analysis.formats.run_record import RunRecord, parse_run_record
from analysis.validate import STORE_SCHEMA_VERSION, read_campaign
from runner.config import Config, changed_keys, config_fingerprint
from runner.errors import ConfigError, StoreError

_FOLDER = {"run": "runs", "prime": "primes"}
MEND = "restore the folder from a copy, or remove it, then start the campaign again"
_PARTS = (*_FOLDER.values(), "sittings", "aborted")


@contextmanager
def _as_store_error(what: str, path: Path) -> Iterator[None]:
    """Turn an operating-system error (full disk, no permission) into a StoreError that names the path."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot {what} {path}: {error.strerror or error}",
            "free space, mend the permissions or name another folder with --results, then start again; finished runs "
            "are kept",
        ) from error


def write_atomic(path: Path, text: str) -> None:
    """Write `text` so that `path` holds either its old content or all of the new (fsync, rename)."""
    temporary = path.with_name(path.name + ".tmp")
    with _as_store_error("write", path):
        temporary.write_text(text, encoding="utf-8")
        _fsync(temporary)
        temporary.replace(path)
        _fsync(path.parent)


def _fsync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_records(root: Path) -> tuple[list[RunRecord], list[tuple[Path, str]]]:
    """Every readable run.json under runs/ and primes/, in folder order; and the folders without one, with the problem.

    Such a folder counts as not run.
    """
    records: list[RunRecord] = []
    unreadable: list[tuple[Path, str]] = []
    for folder in [folder for name in _FOLDER.values() for folder in sorted((root / name).glob("*"))]:
        if folder.name.endswith(".partial") or not folder.is_dir():
            continue
        try:
            records.append(parse_run_record((folder / "run.json").read_bytes(), folder.name))
        except (OSError, ValueError) as error:
            unreadable.append((folder, str(error).splitlines()[0]))
    return records, unreadable


def changed_folders(root: Path, records: Iterable[RunRecord]) -> dict[Path, str]:
    """The records' folders whose files are not those that they list, each with what is wrong."""
    changed = {}
    for record in records:
        folder = root / _FOLDER[record.kind] / record.folder
        try:
            check_files(folder, record)
        except (OSError, ValueError) as error:
            changed[folder] = str(error)
    return changed


def read_header(root: Path) -> dict[str, Any]:
    """campaign.json of a results folder. Raises StoreError when there is none or it cannot be read."""
    try:
        return read_campaign(root)
    except LoadError as error:
        hint = "check --results, restore campaign.json from a copy, or run a campaign first"
        raise StoreError(error.message, hint) from error


def _check_place(root: Path) -> None:
    """Raise StoreError when a folder without campaign.json holds runs, or what no start (.lock) of a campaign left."""
    if (root / "campaign.json").exists():
        return
    if any((root / "runs").glob("*")):
        raise StoreError(f"{root} holds runs but no campaign.json", "restore it, or use another --results")
    with _as_store_error("use", root):
        found = {path.name for path in root.iterdir()} if root.exists() else set()
    others = {name for name in found - {*_PARTS} if not name.startswith(".")}
    if others and ".lock" not in found:
        hint = "give a new or empty folder with --results: a campaign's files are not mixed with others"
        raise StoreError(f"{root} is no results folder and not empty: it holds {min(others)}", hint)


def checked_header(root: Path, config: Config) -> dict[str, Any] | None:
    """campaign.json; None of a new folder. Raises ConfigError when it was begun with a configuration that measures
    something else, StoreError when it cannot be read, or a run's files were changed."""
    if not (root / "campaign.json").exists():
        return None
    header = read_header(root)
    if changed := changed_keys(header["configuration"], config_fingerprint(config)):
        raise ConfigError(
            f"{root} was begun with another configuration; changed: {', '.join(changed)}",
            f"restore these values (see {root / 'campaign.toml'}), or use another --results",
        )
    if damaged := changed_folders(root, read_records(root)[0]):  # not moved away: a run may have cost hours
        raise StoreError("; ".join(f"{folder}: {problem}" for folder, problem in damaged.items()), MEND)
    return header


def _take(lock: int, root: Path) -> None:
    """Hold the folder by its open lock file. Raises StoreError when another campaign does."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 64, 0).decode(errors="replace").strip()
        raise StoreError(
            f"{root} is in use by another campaign (process {holder or 'unknown'})",
            "wait for it, stop it, or give this one another folder with --results",
        ) from error


class Store:
    """An opened, locked results folder. Use `Store.open`; leaving the `with` releases the lock."""

    def __init__(self, root: Path, config: Config, lock: int) -> None:
        self.root, self.lock = root, lock  # a descriptor; whoever inherits it holds the folder as well
        # copies of one folder may be worked on side by side: processes are told apart by the path as well
        self.process_mark = f"{self._adopt(config)}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"

    @classmethod
    def open(cls, root: Path, config: Config) -> Self:
        """Create or reopen `root` for `config`.

        Raises ConfigError when it was begun with a configuration that measures something else, StoreError when
        another campaign process holds it, or it cannot be read or written.
        """
        root = root.resolve()
        _check_place(root)
        with _as_store_error("create", root):
            for name in _PARTS:
                (root / name).mkdir(parents=True, exist_ok=True)
            lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(lock, root)
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            return cls(root, config, lock)
        except BaseException:
            os.close(lock)
            raise

    @staticmethod
    def look(root: Path, config: Config) -> str:
        """Raise what `open` would, and change nothing; returns what is there."""
        there = next(path for path in (root, *root.parents) if path.exists())
        for path in (there, *(root / name for name in _PARTS)):
            if path.exists() and not (path.is_dir() and os.access(path, os.W_OK | os.X_OK)):
                with _as_store_error("write in", path):
                    raise PermissionError(errno.EACCES, "not a folder that this user may write")
        if (root / ".lock").exists():
            with _as_store_error("open", root / ".lock"):
                lock = os.open(root / ".lock", os.O_RDONLY)
            try:
                _take(lock, root)
            finally:
                os.close(lock)
        _check_place(root)
        begun = checked_header(root, config) is not None
        return f"{root}, {'begun with this configuration, in no use' if begun else 'new'}"

    def _adopt(self, config: Config) -> str:
        """Check the folder's configuration against `config`, or record it. Returns the store's identity."""
        fingerprint = config_fingerprint(config)
        store_id = uuid.uuid4().hex[:12]
        if found := checked_header(self.root, config):
            store_id = str(found["store_id"])
            if found["configuration"] == fingerprint:
                return store_id
        header = {
            "schema_version": STORE_SCHEMA_VERSION,
            "store_id": store_id,
            "campaign": config.campaign.name,
            "configuration": fingerprint,
        }
        write_atomic(self.root / "campaign.toml", config.text)
        write_atomic(self.root / "campaign.json", json.dumps(header, indent=1, sort_keys=True) + "\n")
        return store_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.lock)

    def sweep(self) -> list[str]:
        """Move half-written folders and those without a record of their own to aborted/; says so, of each."""
        moved = []
        left = [folder for name in _FOLDER.values() for folder in sorted((self.root / name).glob("*.partial"))]
        unreadable = [(folder, f"{folder.name} ({problem})") for folder, problem in read_records(self.root)[1]]
        for folder, what in [*((folder, "half-written folder") for folder in left), *unreadable]:
            stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{uuid.uuid4().hex[:4]}"
            target = self.root / "aborted" / f"{folder.name.removesuffix('.partial')}.{stamp}"
            with _as_store_error("move", folder):
                folder.rename(target)
            moved.append(f"{what} moved to {target}: it counts as not run")
        return moved

    def begin(self, kind: Literal["run", "prime"], folder: str) -> Path:
        """A new empty `<folder>.partial`, absolute; nothing reads it until `commit`."""
        partial = self.root / _FOLDER[kind] / f"{folder}.partial"
        with _as_store_error("create", partial):
            if partial.exists():
                shutil.rmtree(partial)
            partial.mkdir()
        return partial

    def commit(self, partial: Path) -> None:
        """Flush every file and give the folder its final name."""
        with _as_store_error("finish", partial):
            for path in (*partial.iterdir(), partial):
                _fsync(path)
            partial.rename(partial.with_name(partial.name.removesuffix(".partial")))
            _fsync(partial.parent)

    def write_sitting(self, sitting_id: str, provenance: Mapping[str, Any]) -> None:
        folder = self.root / "sittings" / sitting_id
        with _as_store_error("create", folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "provenance.json", json.dumps(provenance, indent=1, sort_keys=True) + "\n")
