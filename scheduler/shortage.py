"""The numbers in the reason of a waiting job, counted over the whole decision. Pure.

A policy is asked about some of the jobs and some of the GPUs: without manual shares, behind promises, quotas and jobs
of greater priorities, one type of GPUs after the other. Its statement of free GPUs holds for that question alone. Users
see the whole cluster, so the numbers are counted here, from the GPUs that the job may use and all shares of them. A
sentence that would be false for the whole cluster, where enough GPUs are left, is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..protocol.texts import gpu_count
from .view import ClusterView, Lack, Reason, ReasonCode, Taken

BY_OTHERS = "left by jobs that go first"


@dataclass(frozen=True)
class Usable:
    """GPUs of which a job may have some.

    `count`: their number. `given`: by row, how many of them each job gets by this decision. `held`: how many of them
    jobs hold now.
    """

    count: int
    given: Mapping[int, int]
    held: int


def lacking(view: ClusterView, row: int, lack: Lack, usable: Usable) -> Reason:
    """Return why a job waits, with the numbers of the GPUs that it may use. There must be as many as it wants."""
    assert lack.wanted <= usable.count
    for what, taken in ((lack.what, lack.taken), (BY_OTHERS, Taken.GIVEN)):
        left = usable.count - _taken(view, row, taken, usable)
        if left < lack.wanted:
            if (view.jobs.priority > view.jobs.priority[row]).any():
                what = what.replace("earlier jobs", "jobs that go first")
            text = f"waits for {gpu_count(lack.wanted)}: {left} of {usable.count} {what}"
            return Reason(ReasonCode.NO_FREE_GPUS, text, lack)
    return Reason(
        ReasonCode.BEHIND_ANOTHER, f"waits for its turn: the policy leaves {left} of {usable.count} idle", lack
    )


def _taken(view: ClusterView, row: int, taken: Taken, usable: Usable) -> int:
    if taken is Taken.HELD:
        return usable.held
    if taken is Taken.GIVEN:
        return sum(usable.given.values())
    return sum(_minimum(view, other, gpus) for other, gpus in usable.given.items() if goes_before(view, other, row))


def _minimum(view: ClusterView, row: int, gpus: int) -> int:
    return gpus if row in view.manual_shares else min(gpus, int(view.jobs.min_gpus[row]))


def goes_before(view: ClusterView, other: int, row: int) -> bool:
    """Return whether a job precedes another one where jobs are served in order. Jobs with a manual share do."""
    mine, others = int(view.jobs.priority[row]), int(view.jobs.priority[other])
    return other in view.manual_shares or others > mine or (others == mine and other < row)
