"""The simulation's cached order of jobs changes nothing: a policy with tables without it decides alike."""

from __future__ import annotations

import random

import numpy as np
import pytest

from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.policies import Policy, load_policy
from elasticd.scheduler.policies.base import Shares
from elasticd.scheduler.view import JobTable
from elasticd.simulator.costs import NONE, STOP_RESUME
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

GPUS, COUNT = 8, 300
LINES_FROM = 100  # more jobs wait at first, and then fewer than half of that


class FromScratch:
    """The policy wrapped, with copies of the columns only."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name, self.needs_lengths = policy.name, policy.needs_lengths

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        found = self._policy.shares(jobs.cut(np.arange(len(jobs))), gpus, now, rng)
        return Shares(found.gpus, found.why, found.review_s)


def workload(seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    requested = rng.choice([1, 1, 1, 2, 4, 8], COUNT)
    return Workload(
        names=[JobId(f"j{number}") for number in range(COUNT)],
        submit_s=np.sort(np.where(np.arange(COUNT) < COUNT // 2, 0.0, np.round(rng.uniform(0, 6000, COUNT)))),
        min_gpus=np.where(rng.random(COUNT) < 0.2, np.minimum(requested, 2), 1),
        max_gpus=np.full(COUNT, GPUS),
        requested_gpus=requested,
        work_s=np.round(rng.lognormal(5, 1.3, COUNT)),
        curve=rng.integers(0, 2, COUNT),
        curves=Curves(np.array([np.arange(GPUS + 1.0), np.arange(GPUS + 1.0) ** 0.6])),
        models=("linear", "poor"),
    )


@pytest.mark.parametrize(
    "name",
    [
        "fifo",
        "backfill",
        "elastic-fifo",
        "elastic-backfill",
        "srtf",
        "srsf-e",
        "max-min",
        "optimus",
        "pollux",
        "tiresias-l",
        "elastic-tiresias",
        "themis",
        "afs-l",
        "afs-p",
        "afs-s",
        "gandiva",
        "yarn-cs",
    ],
)
@pytest.mark.parametrize("costs", [NONE, STOP_RESUME], ids=lambda costs: str(costs.name))
def test_a_simulation_that_keeps_jobs_in_order_is_one_that_puts_them_in_order_anew(name: str, costs: object) -> None:
    assert costs is NONE or costs is STOP_RESUME
    load, policy = workload(7), load_policy({"policy": name}, "test")
    both = []
    for one in (policy, FromScratch(policy)):
        simulation = Simulation(load, servers(2, GPUS // 2), one, costs, packing=costs is STOP_RESUME)
        simulation._jobs.lines_from = LINES_FROM
        both.append(simulation.run())
    kept, anew = both
    for column in ("start_s", "end_s", "executed_s", "gpu_s", "changes"):
        assert getattr(kept, column).tolist() == getattr(anew, column).tolist()
    assert kept.timeline == anew.timeline
    assert (kept.resizes, kept.preemptions, kept.migrations) == (anew.resizes, anew.preemptions, anew.migrations)
