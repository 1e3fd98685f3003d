"""The policies' view of how jobs scale: the engine's only part that differs between kinds of simulation.

A job is given by its number (`jobs`) everywhere, a share as a number of GPUs; times are seconds of the simulation's
clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from ..scheduler.arrays import Floats, Ints
from ..scheduler.view import JobTable
from .jobs import Jobs


class Knowledge(Protocol):
    """Knowledge of how jobs scale. The engine reports events to it, and asks it for the present state of knowledge.

    Calls come in this order at an event: `learn`; if there is a decision, `sees`, `given`, `began`, and `wants` where
    `explores` is true, which may lead to `began` again. `began` also comes when the new GPUs of a job are ready, before
    `learn`.
    """

    @property
    def explores(self) -> bool:
        """Whether jobs may have to work with only a part of their GPUs."""
        ...

    def next_s(self, running: Ints) -> float:
        """Return when more will be known, if nothing changes; inf: never."""
        ...

    def learn(self, running: Ints, now: float) -> bool:
        """Take over all measurements that are complete by now.

        Return whether there were any, which calls for a decision.
        """
        ...

    def sees(self) -> JobTable:
        """Return the policies' view of the jobs that are not over."""
        ...

    def given(self, jobs: Ints, shares: Ints) -> None:
        """Note that these jobs have been given other GPUs, or none.

        They go on with their old ones until the new ones are ready.
        """
        ...

    def began(self, jobs: Ints, gpus: Ints, speedup: Floats, begin_s: Floats) -> None:
        """Note that from `begin_s` on these jobs work with so many GPUs, at `speedup` times the rate of one."""
        ...

    def wants(self, resting: Ints) -> Mapping[int, int]:
        """Return with how many of its GPUs a job should work from now on; jobs that are left out go on unchanged.

        `resting`: running jobs that neither stand still nor wait for GPUs. Their other GPUs stay their own.
        """
        ...


class KnownCurves:
    """Knowledge of the true curves from the beginning, dents included: jobs get exactly the throughput that policies
    see."""

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
