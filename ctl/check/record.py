"""Record of checked scripts and their results: a small file for each version of a script, in the user's state
directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

KEPT = 500


class Record(msgspec.Struct, frozen=True):
    """Result of a check."""

    command: tuple[str, ...]
    same: bool
    time_s: float  # since 1970


def digest_of(files: Sequence[Path]) -> str | None:
    """Return the digest of a script's files, the first of which is the script itself; None: the script cannot be read."""
    digest = hashlib.sha256()
    for number, path in enumerate(files):
        try:
            content = path.read_bytes()
        except OSError:
            if number == 0:
                return None
            continue
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:32] if files else None


def write(digest: str, command: Sequence[str], same: bool) -> None:
    """Record the result of a check. A failure to write is ignored."""
    directory = _directory()
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f".{digest}.{os.getpid()}"
        temporary.write_bytes(msgspec.json.encode(Record(tuple(command), same, time.time())))
        os.replace(temporary, directory / f"{digest}.json")
        for old in sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink()


def read(digest: str) -> Record | None:
    """Return the result of the last check of this version; None: there was none."""
    try:
        return msgspec.json.decode((_directory() / f"{digest}.json").read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def _directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "elasticctl" / "checks"
