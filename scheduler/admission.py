"""Admission: which jobs are taken into the cluster at all (scheduling.md). A job that is refused is never in the scheduler's
view.

Refusing at once is kinder than letting wait for ever, and keeps a queue bounded. An admission is asked once, when a job is
submitted; what it has admitted it never takes back. There are rules that need a few counts only, and rules that look at all
jobs, their curves and the servers (`by_view`), such as ElasticFlow's by deadlines (`deadlines.admitting`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec

from ..protocol.texts import gpu_count
from .deadlines.admitting import EdfAdmission, ElasticflowAdmission
from .view import ClusterView


@dataclass(frozen=True)
class Situation:
    """What an admission may look at. Jobs are those that have been admitted and are not over."""

    gpus: int  # of all servers known to the cluster, absent ones included, since they may come back
    waiting_jobs: int  # without GPUs
    user_jobs: int  # of the newcomer's user


@dataclass(frozen=True)
class Newcomer:
    """A job that asks to be admitted."""

    min_gpus: int
    user: str  # empty: not known


class Admission(Protocol):
    """A rule by which jobs are admitted. Pure.

    `by_view`: it decides by all that is known (`refusals`), about all jobs that have come since the last turn; else by counts
    (`refusal`), about each at once.
    """

    name: str
    by_view: bool

    @property
    def parameters(self) -> msgspec.Struct:
        """As they are in use."""
        ...

    def refusal(self, job: Newcomer, situation: Situation) -> str:
        """Why the job is not admitted, in a sentence for its user; empty: it is."""
        ...

    def refusals(self, view: ClusterView, newcomers: Sequence[int]) -> Mapping[int, str]:
        """Why which of these rows of the view are not admitted; those that are not named are. They are decided about together."""
        ...


class AllParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class AdmitAll:
    """Every job is admitted, and waits as long as it takes."""

    name = "all"
    by_view = False
    Parameters = AllParameters

    def __init__(self, parameters: AllParameters) -> None:
        self.parameters = parameters

    def refusal(self, job: Newcomer, situation: Situation) -> str:
        return ""

    def refusals(self, view: ClusterView, newcomers: Sequence[int]) -> Mapping[int, str]:
        return {}


class BoundedParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`waiting_jobs`: while so many jobs wait for GPUs no further one is admitted. null: any number may wait.

    `user_jobs`: no user may have more jobs than this in the cluster, waiting and running ones together (the quota of ElasticFlow
    4.4). null: as many as he likes.
    """

    waiting_jobs: Annotated[int, msgspec.Meta(ge=1)] | None = 1000
    user_jobs: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Bounded:
    """A job is refused if it could never run, because it needs more GPUs at least than there are, if too many jobs wait already,
    or if its user has too many."""

    name = "bounded"
    by_view = False
    Parameters = BoundedParameters

    def __init__(self, parameters: BoundedParameters) -> None:
        self.parameters = parameters

    def refusal(self, job: Newcomer, situation: Situation) -> str:
        most, quota = self.parameters.waiting_jobs, self.parameters.user_jobs
        if situation.gpus and job.min_gpus > situation.gpus:
            return f"it needs at least {gpu_count(job.min_gpus)}, and the cluster has {situation.gpus}"
        if most is not None and situation.waiting_jobs >= most:
            return f"{situation.waiting_jobs} jobs wait already, and at most {most} may"
        if quota is not None and job.user and situation.user_jobs >= quota:
            return f"{job.user} has {situation.user_jobs} jobs in the cluster already, and may have {quota}"
        return ""

    def refusals(self, view: ClusterView, newcomers: Sequence[int]) -> Mapping[int, str]:
        return {}


ADMISSIONS = (AdmitAll, Bounded, ElasticflowAdmission, EdfAdmission)
ADMIT_ALL = AdmitAll(AllParameters())
