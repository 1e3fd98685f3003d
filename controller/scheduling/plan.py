"""From a decision to what has to change: stops and shrinks first, so that what they free can be given away."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ...protocol.model import GpuAddress, JobId
from .pipeline import Decision
from .view import ClusterView


class ChangeKind(enum.Enum):
    """What happens to a job. The order is the order in which changes are carried out."""

    STOP = "stop"
    RESIZE = "resize"
    MIGRATE = "migrate"  # none of its GPUs stays
    START = "start"


@dataclass(frozen=True)
class Change:
    """A job's new placement; empty: it gives all its GPUs back."""

    kind: ChangeKind
    job: JobId
    placement: tuple[GpuAddress, ...]


def plan(view: ClusterView, decision: Decision) -> tuple[Change, ...]:
    """The changes from the present placements to the decided ones, for those jobs alone whose set of GPUs differs."""
    changes = []
    for job in view.jobs:
        wanted = decision.placements.get(job.job, ())
        if set(wanted) == set(job.placement):
            continue
        takes = bool(set(wanted) - set(job.placement))  # a job that has lost GPUs may take some although it shrinks
        growth = len(wanted) - len(job.placement)
        changes.append((takes, growth, Change(_kind(job.placement, wanted), job.job, wanted)))
    order = list(ChangeKind)
    changes.sort(key=lambda entry: (order.index(entry[2].kind), entry[0], entry[1]))
    return tuple(change for _, _, change in changes)


def _kind(before: tuple[GpuAddress, ...], after: tuple[GpuAddress, ...]) -> ChangeKind:
    if not after:
        return ChangeKind.STOP
    if not before:
        return ChangeKind.START
    return ChangeKind.RESIZE if set(before) & set(after) else ChangeKind.MIGRATE
