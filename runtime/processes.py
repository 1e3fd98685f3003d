"""Identification of processes by number and start time: the number alone may be reused by another process."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """Return when process `pid` started, in clock ticks since boot; None if there is no such process, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def runs(pid: int | None, ticks: int | None) -> bool:
    """Return whether the process that had number `pid` and started at `ticks` still runs."""
    return pid is not None and ticks is not None and start_ticks(pid) == ticks


def send(pid: int, number: signal.Signals, group: bool = False) -> None:
    """Signal a process, or its group; a process that has ended is ignored."""
    try:
        (os.killpg if group else os.kill)(pid, number)
    except ProcessLookupError:
        pass
