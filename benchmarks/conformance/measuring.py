"""Measurement of the simulator's parameters on this machine: throughput of each kind by share, and costs of changes.

All figures are those that the cluster reports on its jobs (`elasticctl status JOB --json`), with one job running at a time, or
two where one has to give GPUs to the other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from elasticd.protocol.messages import JobView, ShareChange
from elasticd.protocol.model import JobId

from .cluster import GPUS, Cluster
from .kinds import KINDS, Kind
from .trace import Profile

STEPS = 33  # the runtime reports the median interval of the last 32 steps
HALF = GPUS // 2
SHORT_STEPS = 30


@dataclass(frozen=True)
class Curve:
    """One kind of job running alone: steps per second by share, and costs of its resizes (s)."""

    steps_per_s: dict[int, float]
    ready_s: list[float]  # from the request for more GPUs until their workers take part
    pause_s: list[float]


@dataclass(frozen=True)
class Costs:
    """Measured costs of changes (s); see `simulator/costs.py`."""

    start_s: list[float]
    release_s: list[float]
    ready_s: list[float]
    pause_s: list[float]
    end_s: list[float]

    def medians(self) -> dict[str, float]:
        return {name: max(0.0, median(values)) for name, values in asdict(self).items()}


def measure_curve(cluster: Cluster, kind: Kind) -> Curve:
    """Run one job of this kind on one GPU, then on one more at a time, `STEPS` steps on each share."""
    job = cluster.submit(kind, f"curve-{kind.name}", f"1:{kind.virtual_workers}")
    rates: dict[int, float] = {}
    ready_s = []
    for share in range(1, kind.virtual_workers + 1):
        asked_s = time.time()
        cluster.scale(job, share)
        began = cluster.until(job, f"has {share} GPUs", lambda view, share=share: view.share_gpus == share)
        if share > 1:
            ready_s.append(_change_to(began.shares, share).time_s - asked_s)
        first = began.step or 0
        view = cluster.until(job, "has trained", lambda view, end=first + STEPS: (view.step or 0) >= end)
        rates[share] = 1.0 / view.median_step_s
    view = cluster.job(job)
    cluster.cancel(job)
    cluster.until_idle()
    return Curve(rates, ready_s, [resize.paused_s for resize in view.resizes])


def measure_costs(cluster: Cluster, profile: Profile, rounds: int, curves: Sequence[Curve]) -> Costs:
    """Run short jobs on idle GPUs, and on GPUs that another job has to give up first."""
    start_s, taken_s, end_s = [], [], []
    for kind in KINDS:
        for _ in range(rounds):
            view = _short_job(cluster, kind, profile)
            start_s.append(_start_s(view))
            end_s.append(_end_s(view, profile[kind.name][HALF]))
    long = cluster.submit(KINDS[0], "giving", f"1:{GPUS}", rates=profile[KINDS[0].name])
    ready_s = []
    for kind in KINDS:
        for _ in range(rounds):
            cluster.until(long, "has all GPUs", lambda view: view.share_gpus == GPUS)
            view = _short_job(cluster, kind, profile)
            taken_s.append(_start_s(view))
            end_s.append(_end_s(view, profile[kind.name][HALF]))
            back = cluster.until(long, "has all GPUs back", lambda view: view.share_gpus == GPUS)
            assert view.finished_s is not None
            ready_s.append(back.shares[-1].time_s - view.finished_s)
    cluster.cancel(long)
    cluster.until_idle()
    return Costs(
        start_s=start_s,
        release_s=[taken - median(start_s) for taken in taken_s],
        ready_s=[*ready_s, *(each for curve in curves for each in curve.ready_s)],
        pause_s=[each for curve in curves for each in curve.pause_s],
        end_s=end_s,
    )


def _short_job(cluster: Cluster, kind: Kind, profile: Profile) -> JobView:
    """Run a short job on half of the GPUs."""
    job: JobId = cluster.submit(kind, f"short-{kind.name}", str(HALF), SHORT_STEPS, profile[kind.name])
    return cluster.until_over(job)


def _start_s(view: JobView) -> float:
    """Return the time from its submission to its first step."""
    assert view.started_s is not None, f"{view.job} has never started"
    return view.started_s - view.submitted_s


def _end_s(view: JobView, steps_per_s: float) -> float:
    """Return the part of its run time that its steps do not explain: from its last step until its GPUs are free."""
    assert view.started_s is not None
    assert view.finished_s is not None
    return view.finished_s - view.started_s - SHORT_STEPS / steps_per_s


def _change_to(shares: Sequence[ShareChange], share: int) -> ShareChange:
    return next(change for change in reversed(shares) if change.share == share)
