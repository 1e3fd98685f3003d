"""One simulation of the page: all inputs of its result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import elasticd
from elasticd.scheduler.admission import ADMIT_ALL, Admission
from elasticd.scheduler.policies import Policy, load_policy
from elasticd.scheduler.profiles import curves as profiles
from elasticd.scheduler.scheduler import load_scheduler
from elasticd.simulator import assign, traces
from elasticd.simulator.assign import Assigned
from elasticd.simulator.costs import PRESETS
from elasticd.simulator.runs import Setup
from elasticd.simulator.workload import servers

from . import peer_rules, unlike
from .inputs import GPUS, SERVERS, VirtualCluster

SOURCES = Path(elasticd.__file__).parent
CODE = ("simulator", "scheduler")  # folders of the package on which a result depends
OF_AFS: dict[str, tuple[tuple[str, Any], ...]] = {  # parameters with which AFS compares, where not the defaults
    "tiresias-l": (("thresholds_gpu_s", (3250.0, 7200.0)),),  # of its simulator; AFS does not state its own
    "themis": (("lengths", "unknown"),),  # AFS 5.2
}


@dataclasses.dataclass(frozen=True)
class Case:
    """Trace, servers and policy. `policy` is one of this project, or one of `peer_rules`."""

    trace: str
    where: tuple[tuple[str, str], ...]
    profiles: str
    policy: str
    parameters: tuple[tuple[str, Any], ...] = ()
    servers: int = SERVERS
    gpus_per_server: int = GPUS
    gpu_type: str | None = None
    costs: str = "none"
    packing: bool = False
    cap_at_request: bool = False
    random_models: bool = False
    seed: int = 0
    jobs: int = 0  # use only the first so many; 0: all
    slack: float = 0.0  # deadline of every job, as a multiple of its duration; 0: as in the trace
    best_effort: float = 0.0  # fraction of jobs, drawn at random, without a deadline
    uses: str = ""  # on EasyScale's three types of GPUs: which of them a job may use (`unlike`); "": one type
    promises: bool = False  # admission by deadlines, under a policy that ignores them; changes cost nothing

    @property
    def label(self) -> str:
        """Short description."""
        rows = " ".join(value for _, value in self.where) or Path(self.trace).stem
        details = [f"{name}={value}" for name, value in self.parameters]
        details += [self.costs] if self.costs != "none" else []
        details += [name for name in ("packing", "cap_at_request") if getattr(self, name)]
        details += [f"seed {self.seed}"] if self.seed else []
        details += [f"{self.jobs} jobs"] if self.jobs else []
        details += [f"{self.best_effort:.0%} best effort"] if self.best_effort else []
        details += [self.uses] if self.uses else []
        details += ["promises"] if self.promises else []
        return f"{rows} {self.policy}" + (f" ({', '.join(details)})" if details else "")


def philly(cluster: VirtualCluster, policy: str, **rest: Any) -> Case:
    """Return a case of AFS's set-up: a virtual cluster's jobs on 64 GPUs."""
    where = ((cluster.column, cluster.name),) if cluster.column else ()
    return Case(cluster.trace, where, cluster.profiles, policy, random_models=cluster.random_models, **rest)


def afs(cluster: VirtualCluster, policy: str, peak: bool = False) -> Case:
    """Return a case as AFS compares policies. peak: a rigid policy uses the GPUs of each job's greatest throughput."""
    return philly(cluster, policy, parameters=(*OF_AFS.get(policy, ()), *((("peak", True),) if peak else ())))


def each(clusters: Iterable[VirtualCluster], policies: Iterable[str]) -> Iterator[Case]:
    """Return all of these policies on all of these clusters."""
    return (afs(cluster, policy) for cluster in clusters for policy in policies)


def setup(case: Case, data: Path) -> Setup:
    """Load the jobs and the cluster of a case. Raises UserError."""
    trace = traces.load(data / case.trace, {column: [value] for column, value in case.where})
    curves = profiles.load(data / case.profiles, case.gpu_type)
    cluster = unlike.cluster() if case.uses else servers(case.servers, case.gpus_per_server)
    gpus = sum(len(server.gpus) for server in cluster)
    trace = trace.first(case.jobs) if case.jobs else trace
    trace = unlike.with_demands(trace, case.uses) if case.uses else trace
    types = unlike.types() if case.uses else ()
    assigned = assign.assign(
        trace.up_to(gpus), gpus, curves, case.seed, case.cap_at_request, case.random_models, types=types
    )
    assigned = _with_deadlines(case, assigned)
    return Setup(assigned, cluster, PRESETS[case.costs], case.seed, case.packing, admission=admission(case))


def _with_deadlines(case: Case, assigned: Assigned) -> Assigned:
    """Apply the case's deadlines, where it has other ones than the trace."""
    load, deadline_s = assigned.workload, assigned.deadline_s
    if case.slack:
        duration_s = load.work_s / load.curves.speedup[load.curve, load.requested_gpus]
        deadline_s = load.submit_s + case.slack * duration_s
    if case.best_effort:
        rng = random.Random(case.seed)
        deadline_s = deadline_s.copy()
        deadline_s[rng.sample(range(len(load)), round(case.best_effort * len(load)))] = np.nan
    return replace(assigned, workload=replace(load, deadline_s=deadline_s), deadline_s=deadline_s)


def admission(case: Case) -> Admission:
    """Return the admission of a case: the policy's own, where it has one."""
    if case.policy in peer_rules.RULES:
        return ADMIT_ALL
    document = {"policy": case.policy, "parameters": dict(case.parameters)}
    if case.promises:
        document["admission"] = {
            "name": "elasticflow",
            "parameters": {"powers": False},
        }
    return load_scheduler(document, case.policy).stages.admission


def policy(case: Case, prepared: Setup) -> Policy:
    """Return the policy of a case. Raises UserError."""
    rule = peer_rules.RULES.get(case.policy)
    if rule is not None:
        return rule(prepared.assigned.workload)
    return load_policy({"policy": case.policy, "parameters": dict(case.parameters)}, case.policy)


def key(case: Case, data: Path) -> str:
    """Return a key that changes with the case, a file that it reads, or the code that computes it."""
    document = json.dumps(dataclasses.asdict(case), sort_keys=True)
    files = [_digest_of_file(data / name) for name in (case.trace, case.profiles)]
    code = [_digest_of_code()]
    if case.policy in peer_rules.RULES:
        code.append(_digest_of_file(Path(peer_rules.__file__)))
    return hashlib.sha256("\n".join([document, *files, *code]).encode()).hexdigest()[:24]


@cache
def _digest_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _digest_of_code() -> str:
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((SOURCES / folder).rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
