"""A day of serving, and the use of its idle GPUs. Pure.

EasyScale shows the load of its serving cluster as a curve without numbers (Fig. 1), and states that idle and peak hours differ by
up to 2,000 of 3,000 GPUs (2.1, 5.3). The curve here has that swing: the minimum at five in the morning, a first peak before
noon, the highest at nine in the evening, and small bursts.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

HOURS = 24.0
SWING = 2 / 3  # fraction of all GPUs, between idle and peak hours
GOAL_S = 2.0  # from a request until its GPUs are free

Point = tuple[float, int]  # start time (s), and the number of GPUs from then on


def load(hour: float) -> float:
    """Return the load of serving at an hour of the day, from 0 (least) to 1 (peak)."""
    first, second = _peak(hour, 11.0, 3.5), _peak(hour, 21.0, 3.0)
    return min(1.0, 0.75 * first + second)


def _peak(hour: float, at: float, width: float) -> float:
    apart = min(abs(hour - at), HOURS - abs(hour - at))
    return math.exp(-((apart / width) ** 2))


def demand(gpus: int, parts: int, seed: int = 0, bursts: float = 0.15) -> list[int]:
    """Return the GPUs that serving needs in each of so many equal parts of a day, with bursts of up to `bursts` of the swing."""
    rng, most = random.Random(seed), gpus * SWING
    level = [load(HOURS * part / parts) + bursts * rng.random() * (rng.random() < 0.3) for part in range(parts)]
    return [min(math.floor(most), round(most * min(1.0, one))) for one in level]


@dataclass
class Day:
    """Measurements of a day. Times in seconds since the day began."""

    gpus: int
    length_s: float = 0.0
    lent: list[Point] = field(default_factory=list)  # GPUs lent, and free for serving
    trained: list[list[Point]] = field(default_factory=list)  # share of each job
    free_s: list[float] = field(default_factory=list)  # from each request until all of its GPUs are free
    taken: list[int] = field(default_factory=list)  # GPUs of each request that jobs had to leave
    filled_s: list[float] = field(default_factory=list)  # from each end of loans until all GPUs train
    unfilled: int = 0  # times that the next request came before
    killed: int = 0  # workers lost, restarts, and jobs that did not finish
    called_off: int = 0  # workers stopped during their start, as their GPUs were lent meanwhile
    equal: bool = False  # all models equal those of undisturbed runs, bit for bit
    steps: list[int] = field(default_factory=list)  # of each job


def area(points: Sequence[Point], until_s: float) -> float:
    """Return the GPU-seconds up to `until_s`."""
    ends = [*points, (until_s, 0)]
    return sum(gpus * max(0.0, min(end, until_s) - max(0.0, begin)) for (begin, gpus), (end, _) in pairwise(ends))


@dataclass(frozen=True)
class Use:
    """Fractions of all GPU-seconds of a day, and of those that serving left idle."""

    served: float
    with_training: float
    of_idle: float
    idle_gpus: float  # average number of idle GPUs used for training

    @property
    def gain(self) -> float:
        """Relative increase of the cluster's use by training."""
        return self.with_training / self.served - 1.0 if self.served else math.inf


def use(day: Day) -> Use:
    """Return the use of a whole day."""
    every = day.gpus * day.length_s
    served = area(day.lent, day.length_s)
    trained = sum(area(share, day.length_s) for share in day.trained)
    return Use(
        served=served / every,
        with_training=(served + trained) / every,
        of_idle=trained / (every - served),
        idle_gpus=trained / day.length_s,
    )


def table(day: Day) -> str:
    """Return the table, with EasyScale's published figures of one day in December 2021 (5.3)."""
    found, shrunk = use(day), [took for took, of in zip(day.free_s, day.taken, strict=True) if of]
    of_jobs = sum(1 for of in day.taken if of)
    rows = [
        "| | here | EasyScale 5.3 | goal |",
        "| --- | --- | --- | --- |",
        f"| GPUs | {day.gpus} CPU slots | more than 3,000 | |",
        f"| requests for GPUs; those for which jobs had to shrink | {len(day.free_s)}; {of_jobs} | 362 preemptions | |",
        f'| from a request to its GPUs being free, median | {_median(day.free_s)} | "in seconds" | <= {GOAL_S:g} s |',
        f"| the same, of those that took GPUs from jobs: median, worst | {_median(shrunk)}, {_worst(shrunk)} | | |",
        f'| from the end of loans to training on all GPUs, median | {_filled(day)} | "within 5 minutes" | |',
        f"| GPUs in use, serving alone | {found.served:.0%} | | |",
        f"| GPUs in use, with elastic training | {found.with_training:.0%} ({found.gain:+.0%}) | +17.1 % allocated, "
        "+62.1 % SM utilisation | |",
        f"| idle GPUs that training used, on average | {found.idle_gpus:.1f}, {found.of_idle:.0%} of them | 459 | |",
        f"| workers lost, jobs restarted or failed | {day.killed} | no job fails | 0 |",
        f"| new workers called off while they started | {day.called_off} | | |",
        f"| models equal to undisturbed runs, bit for bit | {'all' if day.equal else 'NOT ALL'} "
        f"({', '.join(f'{steps:,}' for steps in day.steps)} steps) | | all |",
    ]
    return "\n".join(rows)


def reached(day: Day) -> bool:
    """Return whether the goals are reached."""
    return bool(day.free_s) and statistics.median(day.free_s) <= GOAL_S and not day.killed and day.equal


def _median(times_s: Sequence[float]) -> str:
    return f"{statistics.median(times_s):.2f} s" if times_s else "-"


def _worst(times_s: Sequence[float]) -> str:
    return f"{max(times_s):.2f} s" if times_s else "-"


def _filled(day: Day) -> str:
    if not day.filled_s:
        return f"- (of {day.unfilled})"
    cut = f"; {day.unfilled} of {len(day.filled_s) + day.unfilled} were cut short" if day.unfilled else ""
    return f"{statistics.median(day.filled_s):.1f} s{cut}"
