"""Download a model at a revision and check every file. Runs in the engine's environment (with its huggingface_hub).

Usage: `python fetch.py REPOSITORY REVISION FOLDER`. What is there already is not downloaded again, and a download that
was cut off goes on. Exit status 1: a file is not what the hub says.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

PATTERNS = ["*.safetensors", "*.json", "*.txt"]


def digest(path: Path, *, git: bool) -> str:
    """SHA-256 of a file; of a small one, kept in git itself, git's SHA-1 of it."""
    found = hashlib.sha1(b"blob %d\0" % path.stat().st_size) if git else hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**24):
            found.update(block)
    return found.hexdigest()


def main(repository: str, revision: str, folder: str) -> int:
    from huggingface_hub import HfApi, snapshot_download

    snapshot_download(repository, revision=revision, local_dir=folder, allow_patterns=PATTERNS)
    status = 0
    for known in HfApi().model_info(repository, revision=revision, files_metadata=True).siblings:
        path = Path(folder) / known.rfilename
        if not path.is_file() or not any(path.match(pattern) for pattern in PATTERNS):
            continue
        expected = known.lfs.sha256 if known.lfs else known.blob_id
        if digest(path, git=not known.lfs) != expected:
            print(f"{path}: not what {repository} has at {revision}; remove it and fetch again", file=sys.stderr)
            status = 1
        else:
            print(f"{path}: as published", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
