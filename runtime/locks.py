"""File locks that a process holds for as long as it lives: the kernel releases them however the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ..protocol.errors import OperatorError


def hold(path: Path, busy: str) -> int:
    """Lock the file `path`, which is created if missing, and return the descriptor that holds the lock until it is closed.

    Raises OperatorError: with the sentence `busy` if another process holds the lock, else with the system's error.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OperatorError(f"{path} cannot be written to: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OperatorError(busy) from None
    except OSError as error:  # not every network file system has locks
        os.close(descriptor)
        raise OperatorError(f"{path} cannot be locked: {error.strerror}") from None
    return descriptor
