"""Telling processes apart for certain: a process number alone may be another process's by now."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot. None: there is no such process, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def runs(pid: int | None, ticks: int | None) -> bool:
    """Whether the process that was number `pid` and started at `ticks` still runs."""
    return pid is not None and ticks is not None and start_ticks(pid) == ticks


def send(pid: int, number: signal.Signals, group: bool = False) -> None:
    """Signal a process, or its group, that may be gone."""
    try:
        (os.killpg if group else os.kill)(pid, number)
    except ProcessLookupError:
        pass
