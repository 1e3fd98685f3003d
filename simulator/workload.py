"""What is simulated: jobs, what they could do with how many GPUs, and the servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..protocol.model import JobId, ServerId
from ..scheduler.view import Curves, Floats, Ints, ServerInView


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
    told_s: Floats | None = None  # what each job tells of `work_s`; nan: nothing; None: all tell the truth
    deadline_s: Floats | None = None  # nan: none; None: no job has one
    soft: Ints | None = None  # 1: the deadline is soft; None: none is
    priority: Ints | None = None  # greater goes first; None: all are alike

    def __len__(self) -> int:
        return len(self.submit_s)


def servers(count: int, gpus: int) -> tuple[ServerInView, ...]:
    """Servers that are all alike."""
    width = len(str(count))
    return tuple(ServerInView(ServerId(f"server-{i:0{width}d}"), tuple(range(gpus))) for i in range(count))
