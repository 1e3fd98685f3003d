"""Courses of a trace's jobs, real or simulated, and their differences. Pure."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

LIMIT = 0.05  # of the real average JCT (AFS 5.1: up to 5.2 % where throughputs have to be measured)


@dataclass(frozen=True)
class Course:
    """Course of one job. Times are seconds since the first submission."""

    name: str
    kind: str
    submit_s: float
    end_s: float
    shares: tuple[tuple[float, int], ...]  # start time and number of GPUs

    @property
    def jct_s(self) -> float:
        return self.end_s - self.submit_s

    def share_at(self, time_s: float) -> int:
        if time_s >= self.end_s:
            return 0
        before = bisect_right(self.shares, time_s, key=lambda change: change[0])
        return self.shares[before - 1][1] if before else 0


def average_jct_s(courses: Sequence[Course]) -> float:
    return fmean(course.jct_s for course in courses)


def makespan_s(courses: Sequence[Course]) -> float:
    return max(course.end_s for course in courses)


def times_of_change(courses: Sequence[Course]) -> list[float]:
    """Return all times at which a job's share changes, with 0 and the last end."""
    times = {0.0, *(course.end_s for course in courses)}
    times |= {time_s for course in courses for time_s, _ in course.shares}
    return sorted(times)


@dataclass(frozen=True)
class Comparison:
    """The same jobs under the same policy, real and simulated, in the same order."""

    policy: str
    real: tuple[Course, ...]
    simulated: tuple[Course, ...]

    @property
    def error(self) -> float:
        """Relative error of the simulated average JCT; below 0: it is shorter than the real one."""
        real_s = average_jct_s(self.real)
        return (average_jct_s(self.simulated) - real_s) / real_s

    @property
    def makespan_error(self) -> float:
        real_s = makespan_s(self.real)
        return (makespan_s(self.simulated) - real_s) / real_s

    @property
    def job_error(self) -> float:
        """Mean absolute relative error of the jobs' JCTs."""
        pairs = zip(self.real, self.simulated, strict=True)
        return fmean(abs(simulated.jct_s - real.jct_s) / real.jct_s for real, simulated in pairs)

    @property
    def differing_share(self) -> float:
        """Fraction of the real GPU-seconds that the simulator gave to another job, or to none."""
        times = sorted({*times_of_change(self.real), *times_of_change(self.simulated)})
        held = missing = 0.0
        for begin, end in itertools.pairwise(times):
            for real, simulated in zip(self.real, self.simulated, strict=True):
                share = real.share_at(begin)
                held += share * (end - begin)
                missing += max(0, share - simulated.share_at(begin)) * (end - begin)
        return missing / held

    @property
    def conforms(self) -> bool:
        return abs(self.error) <= LIMIT

    def document(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        return {
            "policy": self.policy,
            "real_avg_jct_s": average_jct_s(self.real),
            "simulated_avg_jct_s": average_jct_s(self.simulated),
            "error": self.error,
            "limit": LIMIT,
            "conforms": self.conforms,
            "real_makespan_s": makespan_s(self.real),
            "simulated_makespan_s": makespan_s(self.simulated),
            "makespan_error": self.makespan_error,
            "job_error": self.job_error,
            "differing_share": self.differing_share,
            "jobs": [
                {"real": asdict(real), "simulated": asdict(simulated)}
                for real, simulated in zip(self.real, self.simulated, strict=True)
            ],
        }
