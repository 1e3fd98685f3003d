"""The audit log: the acts of principals and their refused attempts, one JSON object per line (trust).

The log is for people and their tools; the controller never reads it. An act is recorded in the store first, then written to the
log, and then answered. A turn's lines are one write, which is not synced: a power failure may lose the last seconds. The history
of each job (`elasticctl events JOB`) names the users who submitted, scaled and cancelled it, and is as durable as the job.

The file is bounded: when it is full it becomes `audit.log.1`, and the oldest of these is dropped.
"""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..protocol.rate_limit import RateLimiter
from .events import Audit

log = logging.getLogger(__name__)

MAX_BYTES = 32 << 20
KEPT = 8  # full files that are kept
FAILURES_AT_ONCE, FAILURE_INTERVAL_S = 3, 600.0  # errors reported in the controller's log


class AuditLog:
    """Writer of the audit log to a file that only its owner can read. Errors go to the controller's log; they
    refuse no request."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._file: int | None = None
        self._size = 0
        self._failures = RateLimiter(FAILURES_AT_ONCE, FAILURE_INTERVAL_S)

    def write(self, lines: Sequence[Audit]) -> None:
        """Add these lines, in their order."""
        if not lines:
            return
        data = b"".join(msgspec.json.encode(_plain(line)) + b"\n" for line in lines)
        try:
            if self._file is None:
                self._open()
            if self._size and self._size + len(data) > self._max_bytes:
                self._rotate()
            self._append(data)
        except OSError as error:
            self.close()
            if self._failures.allow(time.monotonic()):
                log.error("%s cannot be written: %s; %d lines are lost", self._path, error.strerror, len(lines))

    def close(self) -> None:
        """Release the file; the next line opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._file).st_size
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":  # a full disk or a crash has cut a line
            self._append(b"\n")

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        while data:
            written = os.write(self._file, data)
            self._size += written
            data = data[written:]

    def _rotate(self) -> None:
        self.close()
        for number in range(self._kept, 0, -1):
            before = self._numbered(number - 1) if number > 1 else self._path
            with suppress(FileNotFoundError):
                before.replace(self._numbered(number))
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _plain(line: Audit) -> dict[str, Any]:
    at = datetime.datetime.fromtimestamp(line.time_s, datetime.UTC)
    return {
        "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "who": line.who,
        "act": line.act,
        "of": line.of,
        "done": line.done,
        "text": line.text,
        "request": line.request,
    }
