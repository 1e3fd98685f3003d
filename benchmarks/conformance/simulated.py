"""Simulation of the trace, from the same files and by the same code as `elasticctl simulate`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from elasticd.protocol.errors import UserError
from elasticd.protocol.model import JobId
from elasticd.runtime import config
from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.policies.base import Policy, Shares
from elasticd.scheduler.profiles import curves as profiles
from elasticd.scheduler.view import JobTable
from elasticd.simulator import assign, costs, runs, traces, workload

from .cluster import SERVERS, SLOTS
from .courses import Course
from .kinds import Case


@dataclass(frozen=True)
class Files:
    """Input files of the simulator."""

    trace: Path
    profile: Path
    costs: Path

    def command(self, case: Case) -> str:
        """Return the equivalent command line."""
        curves = "known" if case.known else "measured"
        cluster = f"--servers {SERVERS} --gpus-per-server {SLOTS}"
        return (
            f"elasticctl simulate {self.trace} --profiles {self.profile} --overhead {self.costs} "
            f"{cluster} --cap-at-request --curves {curves} --policy {case.policy}"
        )


class Recorded:
    """Policy that decides as `policy` does, and records the share of each job over time."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.needs_lengths = policy.needs_lengths
        self.shares_of: dict[JobId, list[tuple[float, int]]] = {}
        self._policy = policy

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        shares = self._policy.shares(jobs, gpus, now, rng)
        for row, given in enumerate(shares.gpus.tolist()):
            history = self.shares_of.setdefault(jobs.name(row), [(0.0, 0)])
            if history[-1][1] != given:
                history.append((now, given))
        return shares


def simulate(files: Files, case: Case) -> tuple[Course, ...]:
    """Simulate the trace. Returns the courses of its jobs, in order."""
    gpus = SERVERS * SLOTS
    trace = traces.load(files.trace)
    assigned = assign.assign(trace, gpus, profiles.load(files.profile), 0, cap_at_request=True, peaks_known=case.known)
    measured = costs.build(config.load(files.costs, costs.CostsFile, UserError), str(files.costs))
    setup = runs.Setup(assigned, workload.servers(SERVERS, SLOTS), measured, 0, curves_known=case.known)
    recorded = Recorded(load_policy({"policy": case.policy}, "--policy"))
    result = runs.run(setup, recorded)
    load = assigned.workload
    return tuple(
        Course(
            name=name,
            kind=load.models[load.curve[row]],
            submit_s=float(load.submit_s[row]),
            end_s=float(result.end_s[row]),
            shares=tuple(recorded.shares_of[name]),
        )
        for row, name in enumerate(load.names)
    )
