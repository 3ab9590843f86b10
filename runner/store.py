"""The results folder of one campaign: its lock, its configuration, and run folders that appear whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from analysis.formats.run_record import RunRecord
from runner.config import Config, changed_keys, config_fingerprint
from runner.errors import ConfigChanged, StoreError, StoreLocked

STORE_SCHEMA_VERSION = 1
Kind = Literal["run", "prime"]
_FOLDER = {"run": "runs", "prime": "primes"}


@contextmanager
def _as_store_error(what: str, path: Path) -> Iterator[None]:
    """Turn an operating-system error (full disk, no permission) into a StoreError that names the path."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot {what} {path}: {error.strerror or error}",
            "free space or mend the permissions, then start the campaign again; finished runs are kept",
        ) from error


def write_atomic(path: Path, text: str) -> None:
    """Write `text` so that `path` holds either its old content or all of the new (fsync, rename)."""
    temporary = path.with_name(path.name + ".tmp")
    with _as_store_error("write", path):
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Unreadable:
    """A finished-looking folder whose run.json cannot be read; it counts as not run."""

    folder: Path
    problem: str


def read_records(root: Path) -> tuple[list[RunRecord], list[Unreadable]]:
    """Every readable run.json under runs/ and primes/, in folder order, and the folders that are not readable."""
    records: list[RunRecord] = []
    unreadable: list[Unreadable] = []
    for parent in (root / name for name in _FOLDER.values()):
        if not parent.is_dir():
            continue
        for folder in sorted(parent.iterdir()):
            if folder.name.endswith(".partial") or not folder.is_dir():
                continue
            try:
                record = RunRecord.model_validate_json((folder / "run.json").read_bytes())
                if record.folder != folder.name:
                    raise ValueError(f"run.json says folder {record.folder!r}")
                records.append(record)
            except (OSError, ValidationError, ValueError) as error:
                unreadable.append(Unreadable(folder, str(error).splitlines()[0]))
    return records, unreadable


class Store:
    """An opened, locked results folder. Use `Store.open`; close (or leave the `with`) to release the lock."""

    def __init__(self, root: Path, store_id: str, lock: int) -> None:
        self.root = root
        # copies of one folder may be worked on side by side: processes are told apart by the path as well
        self.process_mark = f"{store_id}-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]}"
        self._lock: int | None = lock

    @classmethod
    def open(cls, root: Path, config: Config) -> Store:
        """Create or reopen `root` for `config`.

        Raises StoreLocked when another campaign process holds it, ConfigChanged when it was begun with a
        configuration that measures something else, StoreError when it cannot be read or written.
        """
        with _as_store_error("create", root):
            for name in (*_FOLDER.values(), "sittings", "aborted"):
                (root / name).mkdir(parents=True, exist_ok=True)
            lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(lock, 64, 0).decode(errors="replace").strip()
            os.close(lock)
            raise StoreLocked(
                f"{root} is in use by another campaign (process {holder or 'unknown'})",
                "wait for it, stop it, or give this one another folder with --results",
            ) from error
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            store_id = cls._adopt(root, config)
        except BaseException:
            os.close(lock)
            raise
        return cls(root, store_id, lock)

    @staticmethod
    def _adopt(root: Path, config: Config) -> str:
        """Check the folder's configuration against `config`, or record it. Returns the store's identity."""
        fingerprint = config_fingerprint(config)
        path = root / "campaign.json"
        if path.exists():
            header = read_header(root)
            changed = changed_keys(header["configuration"], fingerprint)
            if changed:
                raise ConfigChanged(
                    f"{root} was begun with another configuration; changed: {', '.join(changed)}",
                    f"restore these values (see {root / 'campaign.toml'}), or use another campaign name or --results",
                )
            merged = _merge(header["configuration"], fingerprint)
            if merged != header["configuration"]:  # arms, models or profiles were added
                write_atomic(path, _header_text(header["store_id"], config, merged))
                write_atomic(root / "campaign.toml", config.text)
            return str(header["store_id"])
        if any((root / "runs").iterdir()):
            raise StoreError(
                f"{root} holds runs but no campaign.json", "restore campaign.json, or use another --results"
            )
        store_id = uuid.uuid4().hex[:12]
        write_atomic(root / "campaign.toml", config.text)
        write_atomic(path, _header_text(store_id, config, fingerprint))
        return store_id

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sweep(self) -> list[Path]:
        """Move half-written and unreadable folders of earlier crashes to aborted/; returns where they went."""
        moved = []
        _, unreadable = read_records(self.root)
        left = [f for name in _FOLDER.values() for f in sorted((self.root / name).glob("*.partial"))]
        for folder in [*left, *(item.folder for item in unreadable)]:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            target = self.root / "aborted" / f"{folder.name.removesuffix('.partial')}.{stamp}.{uuid.uuid4().hex[:4]}"
            with _as_store_error("move", folder):
                folder.rename(target)
            moved.append(target)
        return moved

    def records(self) -> list[RunRecord]:
        return read_records(self.root)[0]

    def begin(self, kind: Kind, folder: str) -> Path:
        """A new empty `<folder>.partial`; nothing reads it until `commit`."""
        partial = self.root / _FOLDER[kind] / f"{folder}.partial"
        with _as_store_error("create", partial):
            if partial.exists():
                shutil.rmtree(partial)
            partial.mkdir()
        return partial

    def commit(self, partial: Path) -> Path:
        """Flush every file and give the folder its final name."""
        final = partial.with_name(partial.name.removesuffix(".partial"))
        with _as_store_error("finish", partial):
            for path in partial.iterdir():
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            fsync_directory(partial)
            partial.rename(final)
            fsync_directory(final.parent)
        return final

    def write_sitting(self, sitting_id: str, provenance: Mapping[str, Any]) -> None:
        folder = self.root / "sittings" / sitting_id
        with _as_store_error("create", folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "provenance.json", json.dumps(provenance, indent=1, sort_keys=True) + "\n")


def read_header(root: Path) -> dict[str, Any]:
    """campaign.json of a results folder. Raises StoreError when there is none or it cannot be read."""
    path = root / "campaign.json"
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        if header["schema_version"] != STORE_SCHEMA_VERSION:
            raise ValueError(f"schema_version {header['schema_version']!r} is not {STORE_SCHEMA_VERSION}")
        if not isinstance(header["configuration"], dict):
            raise TypeError("configuration is not a table")
    except FileNotFoundError as error:
        raise StoreError(
            f"{root} is not a results folder: no campaign.json", "check the path, or run a campaign first"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}", "restore it from a copy, or use another --results"
        ) from error
    return dict(header)


def _header_text(store_id: str, config: Config, configuration: Mapping[str, Any]) -> str:
    header = {
        "schema_version": STORE_SCHEMA_VERSION,
        "store_id": store_id,
        "campaign": config.campaign.name,
        "configuration": configuration,
    }
    return json.dumps(header, indent=1, sort_keys=True) + "\n"


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`old` plus what `new` adds; values present in both are equal where `changed_keys` found nothing."""
    merged = dict(old)
    for key, value in new.items():
        if isinstance(value, Mapping) and isinstance(old.get(key), Mapping):
            merged[key] = _merge(old[key], value)
        else:
            merged.setdefault(key, value)
    return merged
