"""What is simulated: jobs, what they could do with how many GPUs, and the servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..controller.scheduling.view import Curves, Floats, Ints, ServerInView
from ..protocol.model import JobId, ServerId


@dataclass(frozen=True)
class Workload:
    """Jobs in the order of submission. All columns have one entry per job; times are seconds from the first submission."""

    names: Sequence[JobId]
    submit_s: Floats
    min_gpus: Ints
    max_gpus: Ints
    requested_gpus: Ints
    work_s: Floats  # how long the job takes on one GPU
    curve: Ints  # row of `curves` and of `models`
    curves: Curves  # as measured
    models: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.submit_s)


def servers(count: int, gpus: int) -> tuple[ServerInView, ...]:
    """Servers that are all alike."""
    width = len(str(count))
    return tuple(ServerInView(ServerId(f"server-{i:0{width}d}"), tuple(range(gpus))) for i in range(count))


def concave(speedup: Floats) -> Floats:
    """The least concave and growing curve above each row, which policies decide by: where a measured curve has a dent (noise, or
    points between which it was interpolated), a policy that looks one GPU ahead would stop before it."""
    above = np.maximum.accumulate(speedup, axis=1)
    for row in above:
        corners = [0]
        for n in range(1, len(row)):
            while len(corners) > 1:
                a, b = corners[-2], corners[-1]
                if (row[b] - row[a]) * (n - a) > (row[n] - row[a]) * (b - a):
                    break
                corners.pop()
            corners.append(n)
        row[:] = np.interp(np.arange(len(row)), corners, row[corners])
    return above
