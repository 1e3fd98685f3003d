"""What the scheduler sees: a frozen view of the cluster, and the reasons it gives back.

Jobs stand in a table of columns (numpy), one row per job that is not over, in the order of submission. A decision looks at every
waiting job, and there may be tens of thousands of them: whole columns are compared at once, and only the few jobs that matter are
looked at one by one. Columns are cut out of larger ones when a policy first asks for them, since most ask for few.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..protocol.model import JobId, ServerId

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

UNKNOWN_S = 1e9  # finite, so that it can be reckoned with; half a lifetime

Gpus = int  # a set of GPUs: bit i stands for GPU i of the view, whose servers follow each other


@dataclass
class Columns:
    """All that is known of some jobs. Their number is the length of every array; GPU counts are shares."""

    names: Sequence[JobId]
    submitted_s: Floats  # Unix time
    min_gpus: Ints
    max_gpus: Ints  # not beyond the share of greatest throughput
    requested_gpus: Ints  # what a rigid policy gives
    priority: Ints
    share: Ints
    left_s: Floats  # how long it still takes on one GPU; UNKNOWN_S: not known, which counts as very long
    attained_gpu_s: Floats
    executed_s: Floats  # time with any GPU
    waiting_since_s: Floats  # its submission, or when it lost its last GPU; nan while it has some
    curve: Ints  # row of `Curves.speedup`


@dataclass(frozen=True)
class Curves:
    """How throughput grows with GPUs: `speedup[c, n]` is T(n) / T(1) of curve c; `speedup[c, 0]` is 0."""

    speedup: Floats

    @property
    def most(self) -> int:
        """The largest share that they tell of."""
        return int(self.speedup.shape[1]) - 1

    @cached_property
    def _rows(self) -> dict[int, list[float]]:
        return {}

    def row(self, curve: int) -> list[float]:
        """T(n) / T(1) for n from 0 on: for loops over single shares, for which arrays are slow."""
        found = self._rows.get(curve)
        if found is None:
            found = self._rows[curve] = self.speedup[curve].tolist()
        return found

    def correct(self, curve: int, speedup: Floats) -> None:
        """More is known of a curve than before."""
        self.speedup[curve] = speedup
        self._rows.pop(curve, None)


class JobTable:
    """Some rows of `Columns`, in the order of submission."""

    def __init__(self, columns: Columns, rows: Ints, curves: Curves, lengths: bool = True) -> None:
        """`lengths`: may the policy see how long jobs take?"""
        self.rows = rows
        self.curves = curves
        self._columns = columns
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, row: int) -> JobId:
        return self._columns.names[int(self.rows[row])]

    def without_lengths(self) -> JobTable:
        return JobTable(self._columns, self.rows, self.curves, lengths=False)

    def assuming(self, left_s: Floats) -> JobTable:
        """The same jobs, as if each still took so long on one GPU."""
        table = JobTable(self._columns, self.rows, self.curves)
        table.left_s = left_s
        return table

    def cut(self, keep: Ints) -> JobTable:
        """These rows of the table alone."""
        return JobTable(self._columns, self.rows[keep], self.curves, self._lengths)

    @cached_property
    def submitted_s(self) -> Floats:
        return self._columns.submitted_s[self.rows]

    @cached_property
    def min_gpus(self) -> Ints:
        return self._columns.min_gpus[self.rows]

    @cached_property
    def max_gpus(self) -> Ints:
        return self._columns.max_gpus[self.rows]

    @cached_property
    def requested_gpus(self) -> Ints:
        return self._columns.requested_gpus[self.rows]

    @cached_property
    def priority(self) -> Ints:
        return self._columns.priority[self.rows]

    @cached_property
    def share(self) -> Ints:
        return self._columns.share[self.rows]

    @cached_property
    def left_s(self) -> Floats:
        """How long each still takes on one GPU; UNKNOWN_S: not known. Only for policies that declare `needs_lengths`."""
        assert self._lengths, "a policy that needs lengths must declare it"
        return self._columns.left_s[self.rows]

    @cached_property
    def attained_gpu_s(self) -> Floats:
        return self._columns.attained_gpu_s[self.rows]

    @cached_property
    def executed_s(self) -> Floats:
        return self._columns.executed_s[self.rows]

    @cached_property
    def waiting_since_s(self) -> Floats:
        return self._columns.waiting_since_s[self.rows]

    @cached_property
    def curve(self) -> Ints:
        return self._columns.curve[self.rows]

    def speedup(self, rows: Any, gpus: Any) -> Any:
        """T(gpus) / T(1) of these rows."""
        return self.curves.speedup[self.curve[rows], gpus]


@dataclass(frozen=True)
class ServerInView:
    """A server that works, and its GPUs that may be used."""

    server: ServerId
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class ClusterView:
    """`now` is Unix time in seconds; servers stand by name."""

    now: float
    jobs: JobTable
    servers: tuple[ServerInView, ...]
    placements: Mapping[int, Gpus]  # by row, of the jobs that have GPUs
    manual_shares: Mapping[int, int] = field(
        default_factory=dict
    )  # by row, of the jobs whose share has been set by hand

    @cached_property
    def total_gpus(self) -> int:
        return sum([len(server.gpus) for server in self.servers])


class ReasonCode(enum.Enum):
    """Why a job has not got what it could use."""

    NO_FREE_GPUS = "no-free-gpus"
    BEHIND_ANOTHER = "behind-another"
    CLUSTER_TOO_SMALL = "cluster-too-small"
    MANUAL = "manual"
    PACKED = "packed"


@dataclass(frozen=True)
class Reason:
    """`text` is a sentence for people."""

    code: ReasonCode
    text: str
