"""`yarn-cs`: YARN's capacity scheduler as the baseline of EasyScale 5.2, FIFO with gang scheduling.

EasyScale uses it "to ensure inter-job fairness". All jobs belong to one tenant there and have the same priority, so
nothing remains of queues and capacities. EasyScale's own simulator runs one job after the other, even where the next
one would fit beside it, which makes the gain from elasticity look larger. Both variants are here.
"""

from __future__ import annotations

import random

import msgspec

from ..view import JobTable, Reason, ReasonCode
from .base import Shares, waits_for
from .fifo import behind_the_first, first_waiting, going_on, in_order


class YarnCsParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`one_at_a_time`: a job starts only when nothing else runs, as in EasyScale's simulator. Without it, this is
    `fifo`."""

    one_at_a_time: bool = True


class YarnCs:
    """Rigid and in the order of submission, without preemption. A job that could not fit into the cluster holds no
    other back."""

    name = "yarn-cs"
    needs_lengths = False
    Parameters = YarnCsParameters

    def __init__(self, parameters: YarnCsParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        if self.parameters.one_at_a_time:
            return _one_at_a_time(jobs, gpus)
        return behind_the_first(jobs, in_order(jobs, gpus), gpus)


def _one_at_a_time(jobs: JobTable, gpus: int) -> Shares:
    (given, rows), want = going_on(jobs, gpus), jobs.requested_gpus
    if not len(rows):
        rows = first_waiting(given, rows, want, gpus, 1)
        given[rows] = want[rows]

    def why(row: int) -> Reason | None:
        if given[row]:
            return None
        if want[row] > gpus:
            return waits_for(int(want[row]), gpus, gpus)
        running = jobs.name(int(given.argmax()))
        return Reason(ReasonCode.BEHIND_ANOTHER, f"waits until {running} is over: one job at a time")

    return Shares(given, why, rows=rows)
