"""Free space on the file system of a path."""

from __future__ import annotations

import os
from pathlib import Path

from ...runtime.mounts import IN_MEMORY, Mount, mount_of
from .checks import Finding, failure, warning

__all__ = ["IN_MEMORY", "Mount", "mount_of", "room", "text"]

LITTLE_BYTES, FULL_BYTES = 1 << 30, 100 << 20
LITTLE_INODES = 0.02  # part of all inodes below which free ones are few


def room(path: Path, full_bytes: int = FULL_BYTES) -> list[Finding]:
    """Return the faults of the free space at `path`; with less than `full_bytes` free, the disk counts as full."""
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    wrong = []
    if found.f_flag & os.ST_RDONLY:
        wrong.append(
            failure(f"{path} can only be read", f"`mount -o remount,rw` of {mount_of(path).at}; `dmesg` says why")
        )
    if free < full_bytes:
        wrong.append(failure(f"{path} is full: {text(free)} are left", f"make room; `du -xh --max-depth=2 {path}`"))
    elif free < max(LITTLE_BYTES, 2 * full_bytes):
        wrong.append(warning(f"only {text(free)} are left at {path}", f"make room; `du -xh --max-depth=2 {path}`"))
    if found.f_files and found.f_favail < LITTLE_INODES * found.f_files:
        wrong.append(
            failure(f"{path} has hardly any inodes left ({found.f_favail})", "remove what are many small files")
        )
    return wrong


def text(count: float) -> str:
    """Return a number of bytes as text for people."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:.0f} {unit}"
    return f"{count / 1024:.0f} KiB"
