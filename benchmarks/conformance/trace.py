"""Jobs for both the cluster and the simulator, and the simulator's input files. Pure except for writing files.

As in AFS 5.1, a job's length is its run time with the requested GPUs. The number of steps follows from the measured throughput,
and is the real job's parameter. The files are those that ``elasticctl simulate`` reads.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .kinds import KINDS, Kind, kind

Profile = Mapping[str, Mapping[int, float]]  # steps per second, by kind and GPUs


@dataclass(frozen=True)
class Load:
    """Number of jobs, period of their arrivals, and their lengths with the requested GPUs."""

    jobs: int
    within_s: float
    shortest_s: float
    longest_s: float


FULL = Load(jobs=14, within_s=180.0, shortest_s=10.0, longest_s=60.0)
QUICK = Load(jobs=5, within_s=20.0, shortest_s=5.0, longest_s=12.0)


@dataclass(frozen=True)
class PlannedJob:
    """A job of the trace."""

    name: str
    kind: Kind
    submit_s: float  # since the first submission
    gpus: int  # requested, and the most that it gets
    duration_s: float  # with `gpus`

    def steps(self, profile: Profile) -> int:
        """Return the number of steps."""
        return max(1, round(self.duration_s * profile[self.kind.name][self.gpus]))


def plan(load: Load, seed: int) -> tuple[PlannedJob, ...]:
    """Draw jobs: uniformly random arrivals, the first at 0; lengths evenly spaced on a logarithmic scale."""
    rng = random.Random(seed)
    times = [0.0, *sorted(rng.uniform(0.0, load.within_s) for _ in range(load.jobs - 1))]
    jobs = []
    for number, submit_s in enumerate(times):
        chosen = KINDS[rng.randrange(len(KINDS))]
        gpus = rng.choice([share for share in (2, 4, 8) if share <= chosen.virtual_workers])
        duration_s = math.exp(rng.uniform(math.log(load.shortest_s), math.log(load.longest_s)))
        name = f"job{number:02d}"
        jobs.append(PlannedJob(name, chosen, round(submit_s, 1), gpus, round(duration_s, 1)))
    return tuple(jobs)


def write_trace(path: Path, jobs: Sequence[PlannedJob], profile: Profile) -> None:
    """Write the trace in ElasticFlow's format, with each job's steps. The duration is that of these steps."""
    rows = []
    for job in jobs:
        steps = job.steps(profile)
        duration_s = steps / profile[job.kind.name][job.gpus]
        rows.append((job.name, job.submit_s, f"{duration_s:.6f}", job.gpus, job.kind.name, steps))
    _write(path, ("job_id", "submission_time", "duration", "num_gpu", "model_name", "steps"), rows)


def write_profile(path: Path, profile: Profile) -> None:
    rows = [(name, gpus, f"{rate:.6f}") for name, rates in profile.items() for gpus, rate in sorted(rates.items())]
    _write(path, ("model", "gpus", "steps_per_s"), rows)


def read_profile(path: Path) -> dict[str, dict[int, float]]:
    """Read the output of `write_profile`."""
    found: dict[str, dict[int, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(kind(row["model"]).name, {})[int(row["gpus"])] = float(row["steps_per_s"])
    return found


def write_costs(path: Path, seconds: Mapping[str, float]) -> None:
    """Write a file of costs that are the same for all jobs."""
    rounded = {name: round(value, 4) for name, value in seconds.items()}
    path.write_text(yaml.safe_dump({"base": "none", "default": rounded}, sort_keys=False))


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
