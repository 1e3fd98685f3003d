"""Workloads generated from a seed, so that no policy is tuned to the clusters of a trace (docs/design/elastic.md).

A seed stands for one workload. Cluster, load, distribution of lengths and kind of throughput curves vary cyclically with the
seed, so that a few consecutive seeds cover all of them. Arrivals are a Poisson process. `load` is the requested GPU-seconds per
second, over the GPUs of the cluster; above 1 the queue grows as long as jobs arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elasticd.protocol.model import JobId
from elasticd.scheduler.arrays import Floats, Ints
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.profiles.curves import Profiles
from elasticd.simulator.workload import Workload

GPUS = (64, 16, 256, 2048)
LOADS = (0.9, 0.5, 1.3, 0.7, 1.1)
REQUESTS = ((1, 0.6), (2, 0.12), (4, 0.15), (8, 0.13))  # GPUs, and the fraction of jobs that request them
FAMILY = 24  # curves of a generated kind
FULL_AT = 256  # larger clusters get proportionally more jobs
WIDEST = 32  # GPUs of a generated curve

Rng = np.random.Generator


def _lognormal(jobs: int, rng: Rng) -> Floats:
    """Lengths as in many clusters: a median of 10 minutes, one job in a hundred above 5 hours."""
    return rng.lognormal(math.log(600), 1.5, jobs)


def _two_kinds(jobs: int, rng: Rng) -> Floats:
    """Lengths of two kinds: four of five jobs are trials of some minutes, the others train for hours."""
    short = rng.random(jobs) < 0.8
    return np.where(short, rng.lognormal(math.log(180), 0.6, jobs), rng.lognormal(math.log(14_400), 0.6, jobs))


def _pareto(jobs: int, rng: Rng) -> Floats:
    """Lengths with a heavy tail: the longest of a thousand is about three hundred times the shortest."""
    return np.minimum(120.0 * (1.0 - rng.random(jobs)) ** (-1 / 1.2), 400_000.0)


def _batches(jobs: int, rng: Rng) -> Floats:
    """Lengths of sweeps: one to thirty jobs of nearly the same length, of which one in ten fails at once."""
    sizes = rng.integers(1, 31, jobs)
    of_sweep = np.repeat(rng.lognormal(math.log(900), 1.4, jobs), sizes)[:jobs]
    length = of_sweep * rng.lognormal(0.0, 0.3, jobs)
    return np.where(rng.random(jobs) < 0.1, np.minimum(length, 60.0), length)


def _uniform(jobs: int, rng: Rng) -> Floats:
    """Lengths with a light tail: from 5 to 95 minutes."""
    return rng.uniform(300, 5700, jobs)


LENGTHS: dict[str, Callable[[int, Rng], Floats]] = {
    "lognormal": _lognormal,
    "batches": _batches,
    "two kinds": _two_kinds,
    "pareto": _pareto,
    "uniform": _uniform,
}


def _tables(profiles: Profiles, rng: Rng) -> Floats:
    """Return the measured curves."""
    curves = [curve.speedup for curve in profiles.pool()]
    width = max(map(len, curves))
    return np.stack([np.pad(curve, (0, width - len(curve)), mode="edge") for curve in curves])


def _powers(profiles: Profiles, rng: Rng) -> Floats:
    """Return curves n^p, p from 0.4 to 0.95."""
    return np.arange(WIDEST + 1) ** rng.uniform(0.4, 0.95, FAMILY)[:, None]


def _amdahl(profiles: Profiles, rng: Rng) -> Floats:
    """Return curves by Amdahl's law: a fraction of each step, from 1 to 30 %, does not scale."""
    part = rng.uniform(0.01, 0.3, FAMILY)[:, None]
    gpus = np.arange(1, WIDEST + 1)
    return np.concatenate([np.zeros((FAMILY, 1)), 1 / (part + (1 - part) / gpus)], axis=1)


def _dented(profiles: Profiles, rng: Rng) -> Floats:
    """Return powers, with shares between two powers of two that are hardly faster than the smaller one."""
    speedup, gpus = _powers(profiles, rng), np.arange(WIDEST + 1)
    below = np.where(gpus > 0, 2 ** np.floor(np.log2(np.maximum(gpus, 1))).astype(np.int64), 0)
    return 0.3 * speedup + 0.7 * speedup[:, below]


CURVES: dict[str, Callable[[Profiles, Rng], Floats]] = {
    "measured": _tables,
    "powers": _powers,
    "dented": _dented,
    "amdahl": _amdahl,
}


@dataclass(frozen=True)
class Generated:
    """A workload, with its description."""

    workload: Workload
    gpus: int
    what: str


def generate(seed: int, jobs: int, profiles: Profiles) -> Generated:
    """Return the workload of this seed, with so many jobs, or more on a large cluster."""
    rng = np.random.default_rng([seed, 20])
    gpus, load = GPUS[seed % len(GPUS)], LOADS[seed % len(LOADS)]
    jobs *= max(1, gpus // FULL_AT)
    lengths = list(LENGTHS)[(seed // len(LOADS) + 2 * seed) % len(LENGTHS)]
    curves = list(CURVES)[(seed // len(GPUS) + seed) % len(CURVES)]
    speedup = CURVES[curves](profiles, rng)
    requested = rng.choice([one for one, _ in REQUESTS], p=[part for _, part in REQUESTS], size=jobs)
    requested = np.minimum(requested, gpus)
    duration_s = LENGTHS[lengths](jobs, rng)
    per_job = float((requested * duration_s).mean())
    submit_s = np.cumsum(rng.exponential(per_job / (load * gpus), jobs))
    curve = rng.integers(len(speedup), size=jobs)
    best = np.argmax(speedup, axis=1)
    at: Ints = np.minimum(requested, speedup.shape[1] - 1)
    workload = Workload(
        names=tuple(JobId(f"job-{number}") for number in range(jobs)),
        submit_s=submit_s - submit_s[0],
        min_gpus=np.ones(jobs, dtype=np.int64),
        max_gpus=np.minimum(best[curve], gpus),
        requested_gpus=requested,
        work_s=duration_s * speedup[curve, at],
        curve=curve,
        curves=Curves(speedup),
        models=tuple(f"{curves} {number}" for number in range(len(speedup))),
    )
    return Generated(workload, gpus, f"#{seed}: {gpus} GPUs, load {load}, {lengths}, {curves}")
