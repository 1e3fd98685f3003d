"""How many GPUs a job lacks that waits: the numbers of a reason, counted of the whole decision. Pure.

A policy is asked about some of the jobs and some of the GPUs: without those set by hand, behind promises, quotas and jobs of
greater priorities, one type of GPUs after the other. What it says of free GPUs holds for that question alone. People are told of
the cluster, so the numbers are counted here, from the GPUs that the job may use and what everybody gets of them. A sentence that
would not be true of the cluster (enough GPUs are left) gives way to one that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..protocol.texts import gpu_count
from .view import ClusterView, Lack, Reason, ReasonCode, Taken

BY_OTHERS = "left by jobs that go first"


@dataclass(frozen=True)
class Usable:
    """GPUs of which a job may have some. `count`: how many there are; `given`: by row, how many of them each job gets by this
    decision; `held`: how many of them are held by jobs now."""

    count: int
    given: Mapping[int, int]
    held: int


def lacking(view: ClusterView, row: int, lack: Lack, usable: Usable) -> Reason:
    """Why a job waits, with the numbers of the GPUs that it may use; there are as many as it wants."""
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
    """Does a job go before another one where jobs are taken in their order? Those with a share by hand do."""
    mine, others = int(view.jobs.priority[row]), int(view.jobs.priority[other])
    return other in view.manual_shares or others > mine or (others == mine and other < row)
