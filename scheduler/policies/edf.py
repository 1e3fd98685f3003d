"""`edf`, `edf-admission`, `edf-elastic`: the earliest deadline first, ElasticFlow's baseline and its two halves (6.1,
6.4).

* `edf`: "It uses as many GPUs as a job can scale out without decreasing the throughput." Rigid and preemptive: the
  share of greatest throughput or none.
* `edf-admission`: the same, where a job is admitted only if under this rule all deadlines are kept.
* `edf-elastic`: elastic shares in the order of deadlines, and every job is admitted.

The paper does not state how `edf` treats a job that does not fit into the rest; here the job is passed over. Nor does
it state how `edf-elastic` treats a job with a deadline out of reach. It says that resources are wasted on such jobs, so
here they keep their place in the order, and take all GPUs that they can use.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
import numpy as np

from ..arrays import Floats, Ints
from ..deadlines.admitting import EdfAdmission, EdfAdmissionParameters
from ..deadlines.promises import Plan, Promise, earliest_first
from ..deadlines.timeline import Timeline
from ..order import serve
from ..view import JobTable, Reason
from .base import Shares, waits_for
from .elasticflow import Elasticflow

_NEVER_S = 1e300  # finite, because sort keys have to be


class EdfParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Earliest deadline first takes no parameters."""


class Edf:
    """The earliest deadline first, each job with the GPUs of its greatest throughput or none; preemptive. Jobs without
    deadlines come last, in the order of submission."""

    name = "edf"
    needs_lengths = False
    Parameters = EdfParameters

    def __init__(self, parameters: EdfParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        served = serve(jobs, gpus, _BY_DEADLINE, now)
        given = served.given

        def why(row: int) -> Reason | None:
            if given[row]:
                return None
            want = min(int(jobs.max_gpus[row]), jobs.curves.most)
            return waits_for(want, served.free, gpus, "left by earlier deadlines")

        return Shares(given, why, rows=served.rows)


@dataclass(frozen=True)
class _ByDeadline:
    """The earliest deadline first, then jobs without one."""

    def ranks(self, jobs: JobTable, rows: Ints | slice, now: float) -> tuple[Floats, Ints]:
        deadline_s = jobs.deadline_s[rows]
        return np.where(np.isnan(deadline_s), _NEVER_S, deadline_s), np.minimum(jobs.max_gpus[rows], jobs.curves.most)


_BY_DEADLINE = _ByDeadline()


class EdfWithAdmission(Edf):
    """`edf`, and its own admission refuses jobs that would miss their deadlines, or would make others miss theirs."""

    name = "edf-admission"

    def own_admission(self) -> EdfAdmission:
        """Return the admission that is used with this policy where none is named."""
        return EdfAdmission(EdfAdmissionParameters())


class EdfElastic(Elasticflow):
    """The earliest deadline first, elastic: each job gets the least that keeps its deadline, and a job that cannot be
    in time gets all that it can use, in its place of the order; what is left goes as in `elasticflow`. Every job is
    admitted."""

    name = "edf-elastic"
    own_admission = None  # type: ignore[assignment]

    def _plan(self, promised: list[Promise], timeline: Timeline) -> tuple[Plan, list[Promise]]:
        return earliest_first(promised, timeline), []
