"""Admission: rules that accept or refuse a job at its submission (docs/design/scheduling.md).

A refused job never enters the scheduler's view.

An immediate refusal is kinder than endless waiting, and keeps a queue bounded. A rule decides once, when a job
is submitted, and never withdraws its decision. Some rules need a few counts only. Others examine all jobs, their curves
and the servers (`by_view`), such as ElasticFlow's admission by deadlines (`deadlines.admitting`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec

from ..protocol.texts import gpu_count
from .view import ClusterView


@dataclass(frozen=True)
class AdmissionState:
    """Counts that an admission may use. Only admitted, unfinished jobs count."""

    gpus: int  # number of GPUs of all known servers; absent ones count, since they may come back
    waiting_jobs: int  # jobs without GPUs
    user_jobs: int  # jobs of the submitting user


@dataclass(frozen=True)
class Newcomer:
    """A newly submitted job, before its admission."""

    min_gpus: int
    user: str  # empty: unknown


class Admission(Protocol):
    """A rule by which jobs are admitted. Pure.

    `by_view`: the rule examines the whole view (`refusals`), and decides about all jobs submitted since the last turn
    together; otherwise it examines counts (`refusal`), and decides about each job at once.
    """

    name: str
    by_view: bool

    @property
    def parameters(self) -> msgspec.Struct:
        """The parameters in use."""
        ...

    def refusal(self, job: Newcomer, situation: AdmissionState) -> str:
        """Return why the job is not admitted, in a sentence for its user; empty if it is admitted."""
        ...

    def refusals(self, view: ClusterView, newcomers: Sequence[int]) -> Mapping[int, str]:
        """Return the refused rows of the view with their reasons; rows without one are admitted.

        The rule decides about all of them together.
        """
        ...


class AllParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Admission of all jobs takes no parameters."""


class AdmitAll:
    """Every job is admitted, and waits as long as it takes."""

    name = "all"
    by_view = False
    Parameters = AllParameters

    def __init__(self, parameters: AllParameters) -> None:
        self.parameters = parameters

    def refusal(self, job: Newcomer, situation: AdmissionState) -> str:
        return ""

    def refusals(self, view: ClusterView, newcomers: Sequence[int]) -> Mapping[int, str]:
        return {}


class BoundedParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`waiting_jobs`: while so many jobs wait for GPUs no further one is admitted. null: any number may wait.

    `user_jobs`: no user may have more jobs than this in the cluster, waiting and running ones together (the quota of
    ElasticFlow 4.4). null: any number.
    """

    waiting_jobs: Annotated[int, msgspec.Meta(ge=1)] | None = 1000
    user_jobs: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Bounded:
    """A job is refused if its minimum is more GPUs than there are, if too many jobs wait already, or if its user has
    too many."""

    name = "bounded"
    by_view = False
    Parameters = BoundedParameters

    def __init__(self, parameters: BoundedParameters) -> None:
        self.parameters = parameters

    def refusal(self, job: Newcomer, situation: AdmissionState) -> str:
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


ADMIT_ALL = AdmitAll(AllParameters())
