"""When transient GPUs are idle, and how much of an ideal training a job has done with them. Pure.

*Ideal* (EDL 6.2) assumes that scaling takes no time: in each part of the course a job trains at the steady pace of its number of
GPUs. That is the average (as EDL's throughputs are, 6.1) over the later three quarters of such parts in the same course.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean

SETTLED = 0.25  # of a part, after which the pace of a number of workers counts


@dataclass(frozen=True)
class Part:
    """A time in which the borrower has its GPUs, or leaves them idle. Times of CLOCK_MONOTONIC (s)."""

    begin_s: float
    end_s: float
    gpus: int  # that the job may use


@dataclass(frozen=True)
class Step:
    """A step that all workers have applied."""

    at_s: float
    world: int


@dataclass
class Course:
    """One job's course. `freed_s`: from each request of the borrower until no process is on its GPUs."""

    scheme: str
    kept: int
    extra: int
    parts: list[Part] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    freed_s: list[float] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Steps within the course."""
        at = [step.at_s for step in self.steps]
        return bisect_left(at, self.parts[-1].end_s) - bisect_left(at, self.parts[0].begin_s)

    def step_s(self, world: int) -> float:
        """Return the mean time of a step on so many GPUs, without the beginnings of parts.

        The mean, since slow steps that the machine causes are no cost of scaling. Raises ValueError if there are none.
        """
        at = [step.at_s for step in self.steps]
        times: list[float] = []
        for part in self.parts:
            if part.gpus == world:
                settled_s = part.begin_s + SETTLED * (part.end_s - part.begin_s)
                steady = self.steps[bisect_left(at, settled_s) : bisect_left(at, part.end_s)]
                times += [
                    after.at_s - before.at_s
                    for before, after in pairwise(steady)
                    if before.world == after.world == world
                ]
        if not times:
            raise ValueError(f"{self.scheme}: no steady steps on {world} GPUs")
        return mean(times)

    def ideal(self, gpus: Sequence[int] | None = None) -> float:
        """Return the steps of an ideal job. `gpus`: in place of those of each part."""
        found = gpus or [part.gpus for part in self.parts]
        pace = {each: 1.0 / self.step_s(each) for each in set(found)}
        return sum((part.end_s - part.begin_s) * pace[each] for part, each in zip(self.parts, found, strict=True))

    @property
    def ratio(self) -> float:
        """Throughput relative to the ideal."""
        return self.done / self.ideal()

    @property
    def baseline(self) -> float:
        """Throughput of the same job on the kept GPUs alone, relative to the ideal."""
        return self.ideal([self.kept] * len(self.parts)) / self.ideal()

    @property
    def grown_s(self) -> list[float]:
        """Seconds from each return of GPUs until the first step on all of them."""
        found = []
        for part in self.parts:
            if part.gpus > self.kept:
                first = (step.at_s for step in self.steps if step.at_s > part.begin_s and step.world == part.gpus)
                found.append(next(first, part.end_s) - part.begin_s)
        return found
