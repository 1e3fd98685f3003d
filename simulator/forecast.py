"""Forecast of a waiting job's start: the simulator runs forward from a cluster's present state, several times.

Each run draws the lengths of the jobs that have not stated theirs, from ended jobs
(`scheduler.policies.expected_lengths`), and the jobs that arrive meanwhile, from those of the last day: at the same
rate, with the same numbers of GPUs, in groups that are alike. Nothing else is random. So the share of runs in which a
job starts between two times estimates the probability of that, as far as later jobs are like earlier ones.

How long jobs are is itself known from some ended jobs only, and what users train changes from week to week. In a long
queue this matters more than the luck of each job, which averages out. So each run draws the ended jobs as well, with
replacement (Poisson bootstrap), and multiplies all drawn lengths by one factor (`DRIFT`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from ..protocol.errors import UserError
from ..protocol.messages import Outlook, OutlookJob
from ..protocol.model import JobId, JobSpec
from ..scheduler.arrays import Floats, Ints
from ..scheduler.curves import Curves
from ..scheduler.deadline_guard import Deadlines
from ..scheduler.kinds import Demand
from ..scheduler.length_statistics import NOTHING_ENDED, Ended
from ..scheduler.policies.expected_lengths import at_quantiles_s
from ..scheduler.quotas.dividing import Tenancy
from ..scheduler.scheduler import Scheduler, load_scheduler
from ..scheduler.sets import some, union
from ..scheduler.view import Gpus, Kinds, ServerInView, gpus_by_sort, limit_for
from .costs import BACKGROUND
from .engine import Simulation
from .reserved import Period
from .workload import Begun, Workload

RUNS, FEWEST_RUNS = 40, 10
TIME_S, MOST_S = 3.0, 15.0  # of the processor: no more runs are begun; a run is given up
ALIKE = 4  # jobs come in groups of about so many that are alike, such as sweeps: these count as one when jobs are drawn
# Standard deviation of the logarithm of that factor, with which 79 % of starts lie in the interval for the Philly
# cluster 0e4a51 under fifo; other clusters and policies are in docs/reports/benchmarks.md
DRIFT = 0.9
MOST_ARRIVALS = 300
CERTAIN = 0.8  # of the runs lie in the interval that is shown


@dataclass(frozen=True)
class Starts:
    """Times from now at which a job starts, one for each run (s), ascending; inf: it never starts in that run."""

    after_s: tuple[float, ...]

    @property
    def interval_s(self) -> tuple[float, float]:
        """Return the times between which `CERTAIN` of the runs lie, with as many before as after them."""
        tail = (1.0 - CERTAIN) / 2.0
        return self._quantile_s(tail), self._quantile_s(1.0 - tail)

    def _quantile_s(self, part: float) -> float:
        place = part * (len(self.after_s) - 1)
        low, high = self.after_s[math.floor(place)], self.after_s[math.ceil(place)]
        return low if low == high else low + (place - math.floor(place)) * (high - low)


class _Arrival(NamedTuple):
    """A job that is submitted after so many seconds."""

    after_s: float
    min_gpus: int
    max_gpus: int
    user: str
    demand: int  # place in `Outlook.demands`
    quantile: float  # of its length


class TooLong(UserError):
    """A forecast takes too long, since there are too many jobs."""


def starts(outlook: Outlook, job: JobId, seed: int = 0) -> Starts:
    """Return when this waiting job of the outlook starts.

    Raises KeyError if the outlook does not have the job; TooLong.
    """
    target = next((number for number, each in enumerate(outlook.jobs) if each.job == job), None)
    if target is None:
        raise KeyError(job)
    if not any(gpus for _, gpus in outlook.servers):
        return Starts((math.inf,))
    scheduler = load_scheduler(outlook.policy, "the cluster's policy")
    gpus = _gpus(outlook)
    ended = Ended(np.array(outlook.lengths, dtype=np.int64), NOTHING_ENDED.errors) if outlook.lengths else NOTHING_ENDED
    found: list[float] = []
    began_s = time.process_time()

    def check_time(_: int) -> None:
        if time.process_time() - began_s > MOST_S and len(found) < FEWEST_RUNS:
            raise TooLong(f"a forecast with {len(outlook.jobs)} jobs takes more than {MOST_S:.0f} s of processor time")

    quantiles = _quantiles(1 + len(outlook.jobs), np.random.default_rng(seed))
    for run in range(RUNS):
        if len(found) >= FEWEST_RUNS and time.process_time() - began_s > TIME_S:
            break
        found.append(
            _run(outlook, gpus, target, scheduler, ended, quantiles[:, run], random.Random(f"{seed} {run}"), check_time)
        )
    return Starts(tuple(sorted(found)))


def with_job(outlook: Outlook, job: JobId, spec: JobSpec) -> Outlook:
    """Return the outlook in which the asking user has just submitted this job."""
    total = sum(gpus for _, gpus in outlook.servers)
    linear = tuple(float(gpus) for gpus in range(total + 1))
    demand = msgspec.to_builtins(Demand.of(spec))
    known = outlook.demands or (msgspec.to_builtins(Demand()),)
    new = OutlookJob(
        job=job,
        min_gpus=spec.gpus.min,
        max_gpus=max(spec.gpus.min, min(spec.gpus.max, total)),
        requested_gpus=max(spec.gpus.min, min(spec.gpus.max, total)),
        priority=spec.priority,
        curve=len(outlook.speedups),
        submitted_s=outlook.time_s,
        waiting_since_s=outlook.time_s,
        executed_s=0.0,
        attained_gpu_s=0.0,
        changes=0,
        done_s=0.0,
        left_s=None,
        share=0,
        fixed=not spec.expected_to_join,
        by_hand=None,
        time_left_s=spec.time_limit_s,
        user=spec.user or outlook.user,
        demand=known.index(demand) if demand in known else len(known),
    )
    found = replace(outlook, jobs=(*outlook.jobs, new), speedups=(*outlook.speedups, linear))
    return found if demand in known else replace(found, demands=(*known, demand))


def _quantiles(count: int, rng: np.random.Generator) -> Floats:
    """Return quantiles in [0, 1) of so many variables, by variable and run. Those of a variable lie in different parts of
    that range (Latin hypercube sampling), so few runs suffice where a single job decides.
    """
    part = rng.permuted(np.tile(np.arange(RUNS, dtype=np.float64), (count, 1)), axis=1)
    found: Floats = (part + rng.random(part.shape)) / RUNS
    return found


def _run(
    outlook: Outlook,
    gpus: _Gpus,
    target: int,
    scheduler: Scheduler,
    ended: Ended,
    quantiles: Floats,
    rng: random.Random,
    check_time: Callable[[int], None],
) -> float:
    """Return when the target starts in one run (s from now). quantiles: of the factor, and of the jobs' lengths."""
    arrivals = _arrivals(outlook, rng)
    drawn = np.random.default_rng(rng.getrandbits(64)).poisson(ended.lengths / ALIKE) * ALIKE
    ended = Ended(drawn.astype(np.int64), ended.errors)
    factor = math.exp(DRIFT * NormalDist().inv_cdf(min(max(float(quantiles[0]), 1e-3), 1 - 1e-3)))
    later = [each.quantile for each in arrivals]
    table = _Table(outlook, arrivals, ended, np.concatenate((quantiles[1:], later)), factor, gpus.demands)
    stages = scheduler.stages
    simulation = Simulation(
        table.workload,
        gpus.servers,
        scheduler.policy,
        BACKGROUND,
        seed=rng.randrange(1 << 30),
        packing=stages.packing,
        placement=stages.placement,
        begun=table.begun,
        deadlines=_deadlines(outlook, scheduler),
        tenancy=Tenancy(stages.quotas, table.users, stays=table.fixed) if stages.quotas.any else None,
        reserved=_reserved(outlook, scheduler),
    )
    start_s = float(simulation.run(check_time, until_started=target).start_s[target])
    return math.inf if math.isnan(start_s) else start_s


def _reserved(outlook: Outlook, scheduler: Scheduler) -> list[Period]:
    """Return when GPUs are out of use for reservations, and for loans that have begun (s from now)."""
    away = {(one.reservation, one.until_s): sum(1 << gpu for gpu in one.gpus) for one in outlook.away}
    now, found = outlook.time_s, []
    for one in scheduler.stages.reservations:
        taken = away.pop((one.name, one.to_s), 0)
        if one.to_s > now:
            found.append(Period(one.from_s - now, one.to_s - now, one.gpus, taken))
    return found + [Period(0.0, until_s - now, gpus.bit_count(), gpus) for (_, until_s), gpus in away.items()]


def _deadlines(outlook: Outlook, scheduler: Scheduler) -> Deadlines | None:
    """Return the terms on which the cluster keeps deadlines; None: no job has one, or its policy keeps none but its own."""
    some = any(job.deadline_s is not None for job in outlook.jobs)
    return None if not some or scheduler.terms in (None, scheduler.parameters) else Deadlines(scheduler.terms)


class _Gpus(NamedTuple):
    """The cluster's GPUs, and the distinct demands for them; None: each job may use all of them."""

    servers: tuple[ServerInView, ...]
    demands: tuple[Demand, ...] | None


def _gpus(outlook: Outlook) -> _Gpus:
    equal = tuple(ServerInView(server, tuple(range(gpus))) for server, gpus in outlook.servers)
    if not outlook.kinds:
        return _Gpus(equal, None)
    kinds = msgspec.convert(outlook.kinds, tuple[Kinds, ...])
    cluster = tuple(ServerInView.of_kinds(server, own) for (server, _), own in zip(outlook.servers, kinds, strict=True))
    demands = msgspec.convert(outlook.demands, tuple[Demand, ...])
    sorts = gpus_by_sort(cluster)
    everything = (union(sorts.values()),)
    free = all(limit_for(demand, sorts).options == everything and not demand.counts for demand in demands)
    return _Gpus(equal, None) if free else _Gpus(cluster, demands)


def _arrivals(outlook: Outlook, rng: random.Random) -> list[_Arrival]:
    """Return the jobs that arrive in one run: in groups of about `ALIKE`, at the rate of the last day."""
    found: list[_Arrival] = []
    users = outlook.arrival_users or [""] * len(outlook.arrivals)
    demands = outlook.arrival_demands or [0] * len(outlook.arrivals)
    lately = [*zip(outlook.arrivals, users, demands, strict=True)]
    at_s = 0.0
    while outlook.arrivals and outlook.arrivals_s > 0 and len(found) < MOST_ARRIVALS:
        at_s += rng.expovariate(len(outlook.arrivals) / outlook.arrivals_s / ALIKE)
        (least, most), user, demand = rng.choice(lately)
        one = _Arrival(at_s, least, most, user, demand, rng.random())
        found.append(one)
        while rng.random() < 1.0 - 1.0 / ALIKE:
            found.append(one)
    return found


class _Table:
    """The workload of one run: the outlook's jobs, and those that arrive."""

    def __init__(
        self,
        outlook: Outlook,
        arrivals: Sequence[_Arrival],
        ended: Ended,
        quantiles: Floats,
        factor: float,
        demands: Sequence[Demand] | None,
    ) -> None:
        """quantiles: of the lengths, by job of the outlook and of the arrivals. factor: of all drawn lengths. demands: distinct
        ones; None: each job may use all GPUs.
        """
        total = sum(gpus for _, gpus in outlook.servers)
        jobs, now = outlook.jobs, outlook.time_s
        new = len(arrivals)

        def of(name: str, later: Sequence[float] = ()) -> Floats:
            return np.array([*(getattr(job, name) for job in jobs), *(later or [0.0] * new)], dtype=np.float64)

        least = [min(each.min_gpus, total) for each in arrivals]
        most = [max(1, min(each.max_gpus, total)) for each in arrivals]
        requested = of("requested_gpus", most).astype(np.int64)
        done_s = of("done_s")
        known_s = np.array([math.nan if job.left_s is None else job.left_s for job in jobs] + [math.nan] * new)
        drawn_s = at_quantiles_s(ended, requested, done_s, quantiles) * factor
        linear = tuple(float(gpus) for gpus in range(total + 1))
        rows = [each[: total + 1] for each in (*outlook.speedups, linear)]
        speedups = np.array([[*each, *[each[-1]] * (total + 1 - len(each))] for each in rows])
        curve = of("curve", [len(speedups) - 1] * new).astype(np.int64)
        left_s = np.where(np.isnan(known_s), drawn_s, known_s)
        limit_s = np.array(
            [math.inf if job.time_left_s is None else job.time_left_s for job in jobs] + [math.inf] * new
        )
        share = of("share").astype(np.int64)
        rate = speedups[curve, np.minimum(np.where(share > 0, share, requested), total)]
        left_s = np.maximum(np.minimum(left_s, limit_s * np.where(rate > 0, rate, 1.0)), 1.0)
        submit_s = of("submitted_s", [now + each.after_s for each in arrivals]) - now
        waiting_s = [now if job.waiting_since_s is None else job.waiting_since_s for job in jobs]
        since_s = np.where(share[: len(jobs)] > 0, math.nan, np.array(waiting_s) - now)
        asked = [*(job.demand for job in jobs), *(each.demand for each in arrivals)]
        due = [job.deadline_s for job in jobs]
        self.fixed = frozenset(number for number, job in enumerate(jobs) if job.fixed)
        self.users = [*(job.user for job in jobs), *(each.user for each in arrivals)]
        self.workload = Workload(
            names=[*(job.job for job in jobs), *(JobId(f"arrival-{number}") for number in range(new))],
            submit_s=submit_s,
            min_gpus=_ints(of("min_gpus", least)),
            max_gpus=_ints(of("max_gpus", most)),
            requested_gpus=requested,
            work_s=done_s + left_s,
            curve=curve,
            curves=Curves(speedups),
            models=("",) * len(speedups),
            told_s=np.where(np.isnan(known_s), math.nan, done_s + left_s),
            priority=_ints(of("priority")),
            deadline_s=np.array([math.nan if at_s is None else at_s - now for at_s in due] + [math.nan] * new),
            soft=np.array([int(not job.promised) for job in jobs] + [0] * new, dtype=np.int64),
            demands=None if demands is None else [demands[each] for each in asked],
        )
        self.begun = Begun(
            share=share,
            left_s=left_s,
            executed_s=of("executed_s"),
            attained_gpu_s=of("attained_gpu_s"),
            waiting_since_s=np.concatenate((since_s, submit_s[len(jobs) :])),
            changes=_ints(of("changes")),
            fixed=_ints(of("fixed")),
            by_hand=np.array([job.by_hand or 0 for job in jobs] + [0] * new, dtype=np.int64),
            gpus=_held(jobs, total),
        )


def _held(jobs: Sequence[OutlookJob], total: int) -> list[Gpus]:
    """Return the GPUs of each job. A job without known places, as from an older controller, gets any free GPUs."""
    found = [sum(1 << at for at in job.held) for job in jobs]
    free = ((1 << total) - 1) & ~union(found)
    for number, job in enumerate(jobs):
        if job.share and not found[number]:
            found[number] = some(job.share, free)
            free &= ~found[number]
    return found


def _ints(values: Floats) -> Ints:
    return values.astype(np.int64)
