"""Files with secrets of jobs: the content of each becomes a variable of the job's processes.

A job's record has the path alone. The file is read on each server, with the rights of the job's owner, when a worker starts.
"""

from __future__ import annotations

import os
import stat

from .limits import MAX_SECRET_BYTES


def read(path: str) -> str:
    """Return the content of a file without line ends at its end, as `$(cat FILE)` does. Raises OSError, and ValueError for a
    file that can be no variable. Never waits for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a plain file")
        content = file.read(MAX_SECRET_BYTES + 1)
    if len(content) > MAX_SECRET_BYTES:
        raise ValueError(f"it has more than {MAX_SECRET_BYTES >> 10} KiB")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if "\0" in text:
        raise ValueError("it contains a NUL character")
    return text.rstrip("\n")
