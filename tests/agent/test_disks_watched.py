"""Free space readings of a directory, also where the file system returns an error."""

from __future__ import annotations

import errno
import os
import queue
from pathlib import Path

import pytest

from elasticd.agent.health import DiskReading, DisksRead
from elasticd.agent.monitoring import Owned, Watch
from elasticd.protocol.model import Wiring


def seen(path: Path) -> DiskReading:
    """The first reading of `path`."""
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    watch = Watch((), Wiring(), None, {"state": path}, 1, 0.01, Owned(tuple, tuple), lambda: woken.put(None))
    watch.start()
    try:
        woken.get(timeout=300.0)
        first = watch.deliver()[0]
    finally:
        watch.close()
    assert isinstance(first, DisksRead)
    return first.readings[0]


def test_a_disk_that_is_well_tells_its_room(tmp_path: Path) -> None:
    assert seen(tmp_path / "not" / "made yet").free_bytes > 0


def test_a_broken_disk_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> os.statvfs_result:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "statvfs", fails)
    assert seen(tmp_path) == DiskReading("state", str(tmp_path), fails="Input/output error")
