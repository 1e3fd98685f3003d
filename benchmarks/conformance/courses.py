"""What became of a trace's jobs, really or in the simulator, and how far the two are from each other. Pure."""

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
    """One job. Times are seconds since the first submission."""

    name: str
    kind: str
    submit_s: float
    end_s: float
    shares: tuple[tuple[float, int], ...]  # from this time on it had so many GPUs

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
    """All times at which somebody's share changes, with 0 and the last end."""
    times = {0.0, *(course.end_s for course in courses)}
    times |= {time_s for course in courses for time_s, _ in course.shares}
    return sorted(times)


@dataclass(frozen=True)
class Comparison:
    """The same jobs under the same policy; both in the same order."""

    policy: str
    real: tuple[Course, ...]
    simulated: tuple[Course, ...]

    @property
    def error(self) -> float:
        """How far the simulated average JCT is from the real one, as a part of the real one; below 0: it is shorter."""
        real_s = average_jct_s(self.real)
        return (average_jct_s(self.simulated) - real_s) / real_s

    @property
    def makespan_error(self) -> float:
        real_s = makespan_s(self.real)
        return (makespan_s(self.simulated) - real_s) / real_s

    @property
    def job_error(self) -> float:
        """The mean over the jobs of how far each one's JCT is from the real one, as a part of it."""
        pairs = zip(self.real, self.simulated, strict=True)
        return fmean(abs(simulated.jct_s - real.jct_s) / real.jct_s for real, simulated in pairs)

    @property
    def differing_share(self) -> float:
        """Of the GPU-seconds that jobs really had, the part that the simulator gave to another job, or to none."""
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
        """Everything, for a file."""
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
