"""Peak memory of a process, without the files that it has mapped."""

from __future__ import annotations

import ctypes
from pathlib import Path

from .workloads import Workload, build

M_MMAP_THRESHOLD = -3  # mallopt
LARGE_BYTES = 1 << 20


class Meter:
    """Measures memory relative to that at its creation."""

    def __init__(self, model: str) -> None:
        """model: computed once before, so that memory which libraries keep for themselves does not count."""
        ctypes.CDLL(None).mallopt(
            M_MMAP_THRESHOLD, LARGE_BYTES
        )  # so that freed memory is returned; otherwise some is kept, at random
        _compute(build(model))
        self._start = _kib("RssAnon")

    def reset(self) -> None:
        """Start a new peak."""
        Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> int:
        """Return the peak since the last reset (bytes)."""
        return 1024 * (_kib("VmHWM") - _kib("RssFile") - _kib("RssShmem") - self._start)


def _compute(workload: Workload) -> None:
    x, y = (part[: workload.batch_size] for part in workload.data)
    workload.loss(workload.model(x), y).backward()


def _kib(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}")
