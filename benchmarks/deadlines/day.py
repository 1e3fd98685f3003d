"""A day of jobs with and without deadlines, and their outcome. Pure.

Deadlines are drawn as in ElasticFlow 6.1: each is a factor, uniform from 0.5 to 1.5 there, times the run time with the requested
GPUs. Jobs here last a minute, and the start of their processes is a noticeable part of it, so the factors are 0.8 to 2.5.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

REQUESTED = 2  # GPUs with which durations are computed; each job may have up to `MOST`
MOST = 4
FACTORS = 0.8, 2.5
SOFT, BEST_EFFORT = 0.15, 0.25  # fractions of all jobs
SPREAD = 0.6  # standard deviation of the logarithm of the lengths

Point = tuple[float, int]  # time since the day began (s), and the number of GPUs from then on


@dataclass(frozen=True)
class Arrival:
    """A job that is submitted."""

    at_s: float  # since the day began
    steps: int
    deadline_s: float | None  # after its submission; None: best effort
    soft: bool = False


@dataclass
class Story:
    """Outcome of a job. Times in seconds since the day began."""

    name: str
    submitted_s: float
    steps: int
    deadline_s: float | None = None
    soft: bool = False
    verdict: str = ""  # on its submission: holds, provisional, none, refused; "": no deadline
    offer: str = ""  # reason of a refusal, with a deadline that would hold
    planned_s: float | None = None  # planned end, as first announced
    ended_s: float | None = None
    told_s: float | None = None  # time of the first warning that the deadline will be missed
    shares: list[Point] = field(default_factory=list)

    @property
    def missed(self) -> bool:
        return self.deadline_s is not None and self.ended_s is not None and self.ended_s > self.deadline_s

    @property
    def promised(self) -> bool:
        return self.verdict == "holds"


def arrivals(length_s: float, jobs: int, gpus: int, step_s: float, load: float = 0.9, seed: int = 0) -> list[Arrival]:
    """Draw jobs for the first three quarters of a day, which together need `load` of all its GPU-seconds.

    step_s: duration of a step on one GPU.
    """
    rng = random.Random(seed)
    weights = [rng.lognormvariate(0.0, SPREAD) for _ in range(jobs)]
    whole = load * gpus * length_s * 0.75 / step_s
    found = []
    for at_s, weight in zip(sorted(rng.uniform(0.0, 0.75 * length_s) for _ in range(jobs)), weights, strict=True):
        steps = max(20, round(whole * weight / sum(weights)))
        kind = rng.random()
        within_s = rng.uniform(*FACTORS) * steps * step_s / REQUESTED
        if kind < BEST_EFFORT:
            found.append(Arrival(at_s, steps, None))
        else:
            found.append(Arrival(at_s, steps, within_s, soft=kind < BEST_EFFORT + SOFT))
    return found


def table(stories: Sequence[Story]) -> str:
    """Return the table of promises and outcomes."""
    hard = [story for story in stories if story.deadline_s is not None and not story.soft]
    admitted = [story for story in hard if story.verdict != "refused"]
    promised = [story for story in admitted if story.promised]
    early_s = [story.planned_s - story.ended_s for story in promised if story.planned_s and story.ended_s]
    soft = [story for story in stories if story.soft]
    others = [story for story in stories if story.deadline_s is None]
    late = [story for story in promised if story.missed]
    rows = [
        "| | |",
        "| --- | --- |",
        f"| hard deadlines asked for; admitted; of these promised at once | {len(hard)}; {len(admitted)}; {len(promised)} |",
        f"| refused, each with what would hold | {len(hard) - len(admitted)} |",
        f"| promised deadlines that were missed | {len(late)} |",
        f"| of these not told of before | {sum(unannounced(story) for story in late)} |",
        f"| end before the time that was planned at admission: median, least | {_early(early_s)} |",
        f"| soft deadlines: met, of all | {sum(not story.missed for story in soft)} of {len(soft)} |",
        f"| jobs without a deadline: average JCT | {_average(others)} |",
    ]
    return "\n".join(rows)


def unannounced(story: Story) -> bool:
    """Return whether a deadline was missed without an earlier warning."""
    assert story.deadline_s is not None
    return story.missed and (story.told_s is None or story.told_s > story.deadline_s)


def kept(stories: Sequence[Story]) -> bool:
    """Return whether no promise was broken without warning, and all admitted jobs have ended."""
    over = all(story.ended_s is not None for story in stories if story.verdict != "refused")
    return over and not any(unannounced(story) for story in stories if story.promised)


def _early(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.0f} s, {min(seconds):.0f} s" if seconds else "-"


def _average(stories: Sequence[Story]) -> str:
    times = [story.ended_s - story.submitted_s for story in stories if story.ended_s is not None]
    return f"{statistics.mean(times):.0f} s ({len(times)} jobs)" if times else "-"
