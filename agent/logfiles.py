"""The files of a server's jobs: where they are, and pieces of the logs among them.

``<state>/jobs/<job>.<uid>/<worker>.json|.exit|.log``, written by the shim. The uid tells a job from another one that has had
the same number. Names come over the network, so a path is made only of ids that have been checked: letters, digits, ``.``,
``_``, ``-``, no leading dot, and a worker's id is its job's and a number.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..protocol.errors import PeerError
from ..protocol.messages import LogPiece, ReadLog
from ..protocol.model import JobId, WorkerId

MIN_PIECE_BYTES = 128 << 10  # more than the longest line that a shim writes
MAX_PIECE_BYTES = 4 << 20

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_UID = re.compile(r"[0-9a-f]{0,64}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def directory_name(job: JobId, uid: str) -> str:
    """What the directories of a job are called, of its logs as of its checkpoints. Raises PeerError if these are no ids."""
    if not _ID.fullmatch(job) or not _UID.fullmatch(uid):
        raise PeerError(f"{job!r} is not the id of a job")
    return f"{job}.{uid}" if uid else job


@dataclass(frozen=True)
class JobFiles:
    """Paths of the files of all jobs under one state directory."""

    root: Path  # <state>/jobs

    def directory(self, job: JobId, uid: str = "") -> Path:
        """Raises PeerError if `job` is not an id."""
        return self.root / directory_name(job, uid)

    def of(self, job: JobId, worker: WorkerId, suffix: str, uid: str = "") -> Path:
        """`suffix` is "json", "exit" or "log". Raises PeerError if `worker` is not the id of a worker of `job`."""
        directory = self.directory(job, uid)
        if not worker.startswith(f"{job}.") or not _NUMBER.fullmatch(worker[len(job) + 1 :]):
            raise PeerError(f"{worker!r} is not the id of a worker of job {job}")
        return directory / f"{worker}.{suffix}"


def not_read(request: ReadLog, error: str) -> LogPiece:
    """The answer to a request that cannot be met."""
    return LogPiece(request=request.request, data=b"", next_offset=max(0, request.offset), end=True, error=error)


def read_piece(files: JobFiles, request: ReadLog, growing: bool) -> LogPiece:
    """Whole lines of a log from `request.offset` on. `growing`: more may be written later."""

    if request.offset < 0:
        return not_read(request, f"offset {request.offset} is negative")
    limit = min(max(request.limit, MIN_PIECE_BYTES), MAX_PIECE_BYTES)
    try:
        with files.of(request.job, request.worker, "log", request.uid).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(request.offset)
            data = file.read(limit)
    except PeerError as error:
        return not_read(request, str(error))
    except FileNotFoundError:
        if growing:  # its shim is just starting
            return LogPiece(request=request.request, data=b"", next_offset=request.offset, end=False)
        return not_read(request, f"this server has no log of {request.worker}")
    except OSError as error:
        return not_read(request, f"the log of {request.worker} cannot be read: {error.strerror}")
    whole = data[: data.rfind(b"\n") + 1]
    if not growing and not whole and data:  # a shim was killed in the middle of its last line
        return LogPiece(request=request.request, data=data + b"\n", next_offset=request.offset + len(data), end=True)
    next_offset = request.offset + len(whole)
    return LogPiece(
        request=request.request, data=whole, next_offset=next_offset, end=not growing and next_offset >= size
    )
