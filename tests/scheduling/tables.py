"""Tables of jobs from short descriptions, and queries of policies."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from elasticd.protocol.model import JobId, ServerId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.policies import Policy, Shares, load_policy
from elasticd.scheduler.view import UNKNOWN_S, Columns, Gpus, JobTable, Reason, ServerInView


@dataclass(frozen=True)
class Described:
    """One row of a table, with the names of `Columns`. `speedup` is T(n) / T(1) for n from 0 on, constant beyond its end."""

    name: str
    min_gpus: int
    max_gpus: int
    requested_gpus: int
    speedup: tuple[float, ...]
    share: int
    left_s: float
    told_s: float
    done_s: float
    submitted_s: float
    priority: int
    attained_gpu_s: float
    executed_s: float
    waiting_since_s: float
    deadline_s: float = math.nan
    soft: bool = False
    still_until_s: float = 0.0
    changes: int = 0


def linear(gpus: int) -> tuple[float, ...]:
    return tuple(float(n) for n in range(gpus + 1))


def job(
    name: str,
    low: int = 1,
    high: int | None = None,
    *,
    requested: int | None = None,
    speedup: Sequence[float] | None = None,
    share: int = 0,
    left_s: float = UNKNOWN_S,
    told_s: float | None = None,
    done_s: float | None = None,
    submitted_s: float = 0.0,
    priority: int = 0,
    attained_gpu_s: float = 0.0,
    executed_s: float = 0.0,
    waiting_since_s: float | None = None,
    deadline_s: float = math.nan,
    soft: bool = False,
    still_until_s: float = 0.0,
    changes: int = 0,
) -> Described:
    """A job of `low` to `high` GPUs. Defaults: it requests its maximum, scales linearly, waits since its submission, has worked
    on each GPU at the speed of one, and has an unknown length. Without `high` its maximum is the end of `speedup`, or else
    `low`.
    """
    if high is None:
        high = len(speedup) - 1 if speedup is not None else low
    if waiting_since_s is None:
        waiting_since_s = math.nan if share else submitted_s
    if done_s is None:
        done_s = attained_gpu_s
    if told_s is None:
        told_s = done_s + left_s if left_s < UNKNOWN_S else math.nan
    return Described(
        name=name,
        min_gpus=low,
        max_gpus=high,
        requested_gpus=high if requested is None else requested,
        speedup=tuple(speedup) if speedup is not None else linear(high),
        share=share,
        left_s=left_s,
        told_s=told_s,
        done_s=done_s,
        submitted_s=submitted_s,
        priority=priority,
        attained_gpu_s=attained_gpu_s,
        executed_s=executed_s,
        waiting_since_s=waiting_since_s,
        deadline_s=deadline_s,
        soft=soft,
        still_until_s=still_until_s,
        changes=changes,
    )


def table(*jobs: Described, most: int | None = None, lengths: bool = True) -> JobTable:
    """These jobs in this order. Curves cover shares up to `most`; default: the largest maximum."""
    width = 1 + (most if most is not None else max((one.max_gpus for one in jobs), default=1))
    widened = [(*one.speedup[:width], *one.speedup[-1:] * (width - len(one.speedup))) for one in jobs]
    curves = np.array(widened, dtype=float).reshape(len(jobs), width)

    def column(field: str, kind: type) -> Any:
        values = np.array([getattr(one, field) for one in jobs], dtype=kind)
        values.flags.writeable = False  # policies must not change their input
        return values

    whole, real = partial(column, kind=np.int64), partial(column, kind=np.float64)

    curves.flags.writeable = False
    columns = Columns(
        names=[JobId(one.name) for one in jobs],
        submitted_s=real("submitted_s"),
        min_gpus=whole("min_gpus"),
        max_gpus=whole("max_gpus"),
        requested_gpus=whole("requested_gpus"),
        priority=whole("priority"),
        share=whole("share"),
        left_s=real("left_s"),
        told_s=real("told_s"),
        done_s=real("done_s"),
        attained_gpu_s=real("attained_gpu_s"),
        executed_s=real("executed_s"),
        waiting_since_s=real("waiting_since_s"),
        curve=np.arange(len(jobs)),
        deadline_s=real("deadline_s"),
        soft=whole("soft"),
        still_until_s=real("still_until_s"),
        changes=whole("changes"),
    )
    return JobTable(columns, np.arange(len(jobs)), Curves(curves), lengths)


def policy(name: str, **parameters: Any) -> Policy:
    return load_policy({"policy": name, "parameters": parameters}, "test")


def ask(who: Policy | str, jobs: JobTable, gpus: int, now: float = 0.0, seed: int = 0) -> Shares:
    """A policy's decision; it sees lengths only if it has declared that it needs them."""
    if isinstance(who, str):
        who = policy(who)
    seen = jobs if who.needs_lengths else jobs.without_lengths()
    return who.shares(seen, gpus, now, random.Random(seed))


def by_name(jobs: JobTable, shares: Shares) -> dict[str, int]:
    """The nonzero shares, by name."""
    return {jobs.name(row): int(gpus) for row, gpus in enumerate(shares.gpus) if gpus}


def given_to(who: Policy | str, gpus: int, *jobs: Described, now: float = 0.0) -> dict[str, int]:
    """The nonzero shares that a policy gives to jobs on so many GPUs, by name."""
    seen = table(*jobs)
    return by_name(seen, ask(who, seen, gpus, now))


def reasons(jobs: JobTable, shares: Shares) -> Mapping[str, Reason]:
    """Reasons of jobs that get less than they could use, by name."""
    below = np.flatnonzero(shares.gpus < jobs.max_gpus).tolist()
    return {jobs.name(row): reason for row in below if (reason := shares.why(row)) is not None}


# -------------------------------------------------------------------------------------------------------------- strategies


def _bent(most: int, first: float, knee: int, then: float) -> tuple[float, ...]:
    added = [first**n if n < knee else first**knee * then ** (n - knee + 1) for n in range(most)]
    return (0.0, *np.cumsum(added).tolist())


@functools.cache
def speedups(most: int) -> st.SearchStrategy[tuple[float, ...]]:
    """Concave curves, where each GPU adds at most what the one before it added, and measured ones, which have dents."""
    return st.one_of(concave_speedups(most), st.sampled_from([_dented(most, depth) for depth in (0.7, 0.85, 1.0)]))


@functools.cache
def concave_speedups(most: int) -> st.SearchStrategy[tuple[float, ...]]:
    shapes = itertools.product([1.0, 0.9, 0.6], range(1, most + 1), [0.8, 0.5, 0.0])
    return st.sampled_from([_bent(most, *shape) for shape in shapes])


def _dented(most: int, depth: float) -> tuple[float, ...]:
    """Powers of two are as fast as n^0.9; between them, the fraction `depth` of the possible gain is lost."""
    at = [2**power for power in range(most.bit_length() + 1)]
    whole = np.interp(range(most + 1), [0, *at], [0.0, *(n**0.9 for n in at)])
    last = [0, *(n**0.9 for m in range(1, most + 1) for n in [2 ** (m.bit_length() - 1)])]
    return tuple((whole - depth * (whole - np.array(last))).tolist())


@st.composite
def described(draw: st.DrawFn, name: str, most: int = 8, dents: bool = True) -> Described:
    """Any valid job of up to `most` GPUs. It may have requested more than it can use, and have run before."""
    low = draw(st.integers(1, min(4, most)))
    speedup = draw(speedups(most) if dents else concave_speedups(most))
    peak = max(low, next(n for n in range(1, most + 1) if speedup[n] == speedup[-1]))
    high = draw(st.integers(low, peak))
    share = draw(st.one_of(st.just(0), st.integers(low, high)))
    executed_s = draw(st.sampled_from([0.0, 60.0, 7200.0, 100_000.0])) if share or draw(st.booleans()) else 0.0
    return job(
        name,
        low,
        high,
        requested=draw(st.one_of(st.just(high), st.integers(low, most))),
        speedup=speedup,
        share=share,
        left_s=draw(st.sampled_from([0.0, 30.0, 100.0, 3600.0, 1e5, UNKNOWN_S])),
        submitted_s=-100_000.0,
        attained_gpu_s=executed_s * draw(st.integers(low, high)),
        executed_s=executed_s,
        waiting_since_s=math.nan if share else draw(st.sampled_from([-100_000.0, -50.0, 0.0])),
    )


@dataclass(frozen=True)
class Case:
    """Jobs, and the GPUs to divide at time 0. Jobs may hold more GPUs than exist: servers have been lost."""

    jobs: tuple[Described, ...]
    gpus: int

    @property
    def table(self) -> JobTable:
        return table(*self.jobs)


@st.composite
def cases(draw: st.DrawFn, most_jobs: int = 6, most_gpus: int = 12, most_share: int = 8, dents: bool = True) -> Case:
    jobs = [draw(described(f"j{number}", most_share, dents)) for number in range(draw(st.integers(0, most_jobs)))]
    return Case(tuple(jobs), draw(st.integers(0, most_gpus)))


def servers(*sizes: int) -> tuple[ServerInView, ...]:
    return tuple(ServerInView(ServerId(f"s{i}"), tuple(range(size))) for i, size in enumerate(sizes))


def gpus(*bits: int) -> Gpus:
    return sum(1 << bit for bit in bits)


@st.composite
def anywhere(draw: st.DrawFn, total: int, most_jobs: int = 12, most_share: int = 8) -> dict[int, Gpus]:
    """Jobs on arbitrary GPUs."""
    free = list(range(total))
    draw(st.randoms(use_true_random=False)).shuffle(free)
    present = {}
    for row in range(draw(st.integers(0, most_jobs))):
        has = draw(st.integers(0, min(most_share, len(free))))
        if has:
            present[row] = gpus(*free[:has])
            free = free[has:]
    return present
