"""The files of a server's jobs: their paths, and pieces of the logs among them.

``<state>/jobs/<job>.<uid>/<worker>.json|.exit|.log``, written by the shim. The uid distinguishes a job from another one
that has had the same number. Names come over the network, so a path is made only of ids that have been checked:
letters, digits, ``.``, ``_``, ``-``, no leading dot, and a worker's id is its job's and a number.

Where a job runs as another account, this directory holds only the agent's own record. The shim, which has that account
by then, writes to ``<state>/accounts/<account>/<job>.<uid>``. That directory belongs to the account. So its contents
are trusted only as statements about that account's processes, and read with the account's rights, as plain files of
limited size.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from ..protocol.errors import PeerError
from ..protocol.messages import LogPiece, ReadLog
from ..protocol.model import JobId, WorkerId
from . import shim
from .accounts import Account, acting_as

MIN_PIECE_BYTES = 128 << 10  # more than the longest line that a shim writes
MAX_PIECE_BYTES = 4 << 20
MAX_OFFSET = 2**62

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_UID = re.compile(r"[0-9a-f]{0,64}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def directory_name(job: JobId, uid: str) -> str:
    """Return the name of a job's directories, for its logs as for its checkpoints. Raises PeerError if these are not
    ids.
    """
    if not _ID.fullmatch(job) or not _UID.fullmatch(uid):
        raise PeerError(f"{job!r} is not the id of a job")
    return f"{job}.{uid}" if uid else job


@dataclass(frozen=True)
class JobFiles:
    """Paths of the files of all jobs under one state directory."""

    root: Path  # <state>/jobs

    @property
    def accounts(self) -> Path:
        return self.root.parent / "accounts"

    def output(self, job: JobId, uid: str, account: Account) -> Path:
        """Return the directory to which a job's shims write. Raises PeerError if `job` is not an id."""
        name = directory_name(job, uid)
        return self.root / name if account.own else self.accounts / account.name / name

    def output_of(self, job: JobId, worker: WorkerId, suffix: str, uid: str, account: Account) -> Path:
        """Return the path of a file that a shim writes, named as in `of`."""
        return self.output(job, uid, account) / self.of(job, worker, suffix, uid).name

    def directory(self, job: JobId, uid: str = "") -> Path:
        """Return the directory of a job. Raises PeerError if `job` is not an id."""
        return self.root / directory_name(job, uid)

    def of(self, job: JobId, worker: WorkerId, suffix: str, uid: str = "") -> Path:
        """Return the path of a worker's file. `suffix` is "json", "exit" or "log". Raises PeerError if `worker` is not
        the id of a worker of `job`.
        """
        directory = self.directory(job, uid)
        if not worker.startswith(f"{job}.") or not _NUMBER.fullmatch(worker[len(job) + 1 :]):
            raise PeerError(f"{worker!r} is not the id of a worker of job {job}")
        return directory / f"{worker}.{suffix}"


def not_read(request: ReadLog, error: str) -> LogPiece:
    """Return the answer to a request that cannot be met."""
    return LogPiece(
        request=request.request, data=b"", next_offset=min(max(0, request.offset), MAX_OFFSET), end=True, error=error
    )


def read_small(path: Path, account: Account, most_bytes: int) -> bytes:
    """Return a file in a directory of `account`. Raises OSError, also if it is not a plain file or longer than
    `most_bytes`.
    """
    with acting_as(account):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            raise OSError(0, f"it is no plain file of at most {most_bytes} bytes", str(path))
        return file.read(most_bytes)


def read_piece(files: JobFiles, request: ReadLog, growing: bool, account: Account) -> LogPiece:
    """Return whole lines of a log from `request.offset` on. A negative offset counts bytes back from the present end of
    the log; the first line is then the first that begins after it. `growing`: more may be written later.
    """
    if not -MAX_OFFSET <= request.offset <= MAX_OFFSET:
        return not_read(request, f"offset {request.offset} is beyond the ends of any file")
    limit = min(max(request.limit, MIN_PIECE_BYTES), MAX_PIECE_BYTES)
    try:
        path = files.output_of(request.job, request.worker, "log", request.uid, account)
        with acting_as(account):
            wanted, offset, last, size, data = _read_at(path, request, limit)
    except PeerError as error:
        return not_read(request, str(error))
    except FileNotFoundError:
        if growing:  # its shim is just starting
            return LogPiece(request=request.request, data=b"", next_offset=max(0, request.offset), end=False)
        return not_read(request, f"this server has no log of {request.worker}")
    except OSError as error:
        return not_read(request, f"the log of {request.worker} cannot be read: {error.strerror}")
    whole = data[: data.rfind(b"\n") + 1]
    over = last and not growing
    if data and not whole and (over or not last):  # a shim was killed in the middle of its last line
        return LogPiece(request=request.request, data=data + b"\n", next_offset=offset + len(data), end=over)
    next_offset = offset + len(whole)
    gap = offset - wanted
    told = b"%s e (%d bytes of this log were not kept)\n" % (whole.partition(b" ")[0], gap) if gap and whole else b""
    ends = over and next_offset >= offset + size
    return LogPiece(request=request.request, data=told + whole, next_offset=next_offset, end=ends)


def _read_at(path: Path, request: ReadLog, limit: int) -> tuple[int, int, bool, int, bytes]:
    """Return a piece of a log: the requested offset, counted from the log's beginning; the offset of the piece, which
    is later where files have been removed; whether its file is the last; the length of that file from there; data.
    """
    parts = shim.log_files(str(path.parent), request.worker)
    if not parts:
        raise FileNotFoundError
    wanted, within_line = request.offset, False
    if wanted < 0:
        start, name = parts[-1]
        wanted = start + os.lstat(path.parent / name).st_size + request.offset
        wanted, within_line = max(parts[0][0], wanted), wanted > parts[0][0]
    number = max((i for i, (start, _) in enumerate(parts) if start <= wanted), default=0)
    while True:
        start, name = parts[number]
        last = number == len(parts) - 1
        descriptor = os.open(path.parent / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "it is no plain file")
            within = max(0, wanted - start)
            file.seek(within)
            data = file.read(limit)
        if within_line and data:
            cut, within_line = data.find(b"\n") + 1, False
            wanted, within, data = wanted + cut, within + cut, data[cut:]
        if data or last:
            return wanted, start + within, last, max(0, status.st_size - within), data
        number += 1  # the next file, also where files between them have been removed
