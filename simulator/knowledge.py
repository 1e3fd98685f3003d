"""What policies see of how jobs scale: the engine's only collaborator that differs between what is simulated.

A job is given by its number (`jobs`) everywhere, a share as a number of GPUs, times are seconds of the simulation's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from ..scheduler.view import Floats, Ints, JobTable
from .jobs import Jobs


class Knowledge(Protocol):
    """The engine tells it what happens, and asks it what is known.

    Calls come in this order at an event: `learn`; if there is a decision, `sees`, `given`, `began`, and `wants` where `explores`
    says so, which may lead to `began` again. `began` also comes when the new GPUs of a job are ready, before `learn`.
    """

    @property
    def explores(self) -> bool:
        """May it want jobs to work with other numbers of their GPUs than all?"""
        ...

    def next_s(self, running: Ints) -> float:
        """When more will be known, if nothing changes; inf: never."""
        ...

    def learn(self, running: Ints, now: float) -> bool:
        """Take over what has become known by now. Whether there was anything, which calls for a decision."""
        ...

    def sees(self) -> JobTable:
        """What policies see of the jobs that are not over."""
        ...

    def given(self, jobs: Ints, shares: Ints) -> None:
        """These jobs have been given other GPUs, or none. They go on with what they had until the new ones are ready."""
        ...

    def began(self, jobs: Ints, gpus: Ints, speedup: Floats, begin_s: Floats) -> None:
        """From `begin_s` on these jobs work with so many GPUs, so many times as fast as with one."""
        ...

    def wants(self, resting: Ints) -> Mapping[int, int]:
        """With how many of its GPUs a job is to work from now on; jobs that are left out go on as they do.

        `resting`: running jobs that neither stand still nor wait for GPUs. Their other GPUs stay their own.
        """
        ...


class KnownCurves:
    """Policies see the true curves from the beginning, dents included: what they are promised is what jobs get."""

    explores = False

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def next_s(self, running: Ints) -> float:
        return math.inf

    def learn(self, running: Ints, now: float) -> bool:
        return False

    def sees(self) -> JobTable:
        return self._jobs.table()

    def given(self, jobs: Ints, shares: Ints) -> None:
        pass

    def began(self, jobs: Ints, gpus: Ints, speedup: Floats, begin_s: Floats) -> None:
        pass

    def wants(self, resting: Ints) -> Mapping[int, int]:
        return {}
