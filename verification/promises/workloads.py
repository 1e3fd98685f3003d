"""Random workloads with deadlines, random terms of admission, and the jobs that were late.

A case consists of all that its seed draws: jobs, policy, admission and packing, terms, and costs of changes of GPUs; and, in a
part of the cases, two or three types of GPUs, the speed of jobs on each, and jobs that ask for a type, for memory or for GPUs per
server. Costs never exceed the allowance in the terms, and every job is as long as declared. So an admitted job that is late is an
error of the scheduler.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elasticd.protocol.model import JobId, ServerId
from elasticd.scheduler.arrays import Ints
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.kinds import Demand, GpuSort
from elasticd.scheduler.scheduler import load_scheduler
from elasticd.scheduler.view import ServerInView
from elasticd.simulator.assign import Assigned
from elasticd.simulator.costs import BACKGROUND, NONE, STOP_RESUME, Costs
from elasticd.simulator.replay import own_setups
from elasticd.simulator.runs import Result, Setup, run
from elasticd.simulator.workload import Workload, servers

NAN = math.nan
GPUS = 8
LATE_S = 1e-6  # rounding of the clock
OWN = "elasticflow"
BESIDE = ("elastic", "afs-l", "afs-p", "max-min", "optimus")
USERS = (5.0, 0.5)  # default start_s and resize_s
ALLOWANCES: tuple[tuple[Costs, tuple[float, float]], ...] = (  # costs, and terms that cover them
    (NONE, USERS),
    (NONE, (0.0, 0.0)),
    (NONE, (30.0, 30.0)),
    (BACKGROUND, USERS),
    (BACKGROUND, (3.4, 0.4)),
    (STOP_RESUME, (30.0, 30.0)),
)
GIB = 1 << 30
SORTS = (GpuSort("NVIDIA A100", 80 * GIB), GpuSort("Tesla V100", 32 * GIB), GpuSort("Tesla T4", 16 * GIB))
TYPED = 0.5  # part of the cases with several types of GPUs, or with jobs that ask for GPUs per server


def curves(rng: random.Random, dents: bool) -> Curves:
    """Return some concave speed-up curves; with `dents`, also some that are not concave."""
    found = [np.arange(GPUS + 1) ** power for power in (0.4, 0.6, 0.8, 1.0)]
    if dents:
        found += [np.array([0.0, *np.cumsum([rng.choice([0.1, 0.5, 1.0]) for _ in range(GPUS)])]) for _ in range(3)]
    return Curves(np.array([one / one[1] for one in found]))


def workload(
    seed: int, dents: bool = False, best_effort: float = 0.2, soft: float = 0.1, turns: bool = False
) -> Workload:
    """Draw up to forty jobs that arrive faster than they can be served; deadlines as in ElasticFlow 6.1, and tighter.

    turns: several arrive at a time.
    """
    rng = random.Random(seed)
    count = rng.randint(2, 40)
    scaling = curves(rng, dents)
    work_s = np.array([rng.choice([50.0, 400.0, 3000.0]) * rng.uniform(0.5, 2) for _ in range(count)])
    gap_s = rng.choice([20.0, 100.0, 400.0])
    submit_s = np.cumsum([0.0 if turns and rng.random() < 0.6 else rng.expovariate(1 / gap_s) for _ in range(count)])
    curve = np.array([rng.randrange(len(scaling.speedup)) for _ in range(count)])
    requested = np.array([rng.choice([1, 2, 4, 8]) for _ in range(count)])
    alone_s = work_s / scaling.speedup[curve, requested]
    bound = np.array([rng.random() >= best_effort for _ in range(count)])
    due_s = submit_s + alone_s * np.array([rng.uniform(0.5, 1.5) for _ in range(count)]) + 2
    return Workload(
        names=tuple(JobId(f"j{number}") for number in range(count)),
        submit_s=submit_s - submit_s[0],
        min_gpus=np.array([rng.choice([1, 1, 1, 2]) for _ in range(count)]),
        max_gpus=np.full(count, GPUS),
        requested_gpus=requested,
        work_s=work_s,
        curve=curve,
        curves=scaling,
        models=("any",) * len(scaling.speedup),
        deadline_s=np.where(bound, due_s - submit_s[0], NAN),
        soft=np.array([int(rng.random() < soft) for _ in range(count)]),
    )


def typed_cluster(rng: random.Random) -> tuple[ServerInView, ...]:
    """Return some servers, each with GPUs of one of up to three types; one type in a few cases."""
    size = rng.choice((2, 4))
    found: list[ServerInView] = []
    for sort in SORTS[: rng.choice((1, 2, 2, 3, 3))]:
        for _ in range(rng.randint(1, 3)):
            found.append(ServerInView(ServerId(f"server-{len(found)}"), tuple(range(size)), (sort,) * size))
    if rng.random() < 0.1:  # one name, another amount of memory
        found[0] = replace(found[0], sorts=(replace(SORTS[0], memory_bytes=40 * GIB),) * size)
    rng.shuffle(found)
    return tuple(sorted((replace(one, server=ServerId(f"server-{at}")) for at, one in enumerate(found)), key=_name))


def _name(server: ServerInView) -> str:
    return server.server


def _demand(rng: random.Random, size: int) -> Demand:
    return Demand(
        types=rng.choice(((), (), (), ("A100",), ("V100",), ("A100", "V100"), ("T4", "A100"))),
        memory_bytes=rng.choice((0, 0, 0, 16, 32, 40, 80)) * GIB,
        mixes=rng.random() < 0.15,
        per_server=rng.choice((0, 0, 0, 0, 1, 2, size)),
    )


def typed(load: Workload, rng: random.Random, cluster: tuple[ServerInView, ...]) -> Workload:
    """Return the same jobs with demands, and with a speed of their own on each type of GPUs."""
    curves, own = load.curves.speedup, np.arange(len(load.curves.speedup))
    rows, on = [curves], {}
    for sort in SORTS[1:]:
        faster = np.array([rng.choice((0.3, 0.5, 1.0, 1.3)) for _ in own])
        shape = np.array([rng.randrange(len(own)) for _ in own])
        on[sort.name] = own + len(own) * len(rows)
        rows.append(curves[shape] * faster[:, None])
    demands = tuple(_demand(rng, len(cluster[0].gpus)) for _ in load.names)
    each = np.array([max(demand.per_server, 1) for demand in demands])
    return replace(
        load,
        min_gpus=-(-load.min_gpus // each) * each,
        max_gpus=load.max_gpus // each * each,
        curves=Curves(np.vstack(rows), on=on),
        models=load.models * len(rows),
        demands=demands,
    )


@dataclass(frozen=True)
class Case:
    """A random case. `document`: a policy file; `costs`: of changes of a job's GPUs."""

    seed: int
    load: Workload
    document: dict[str, Any]
    costs: Costs
    cluster: tuple[ServerInView, ...]

    @property
    def types(self) -> str:
        if self.load.demands is None:
            return "one GPU type"
        names = {sort.name for server in self.cluster for sort in server.sorts}
        return f"{len(names)} GPU types, demands" if len(names) > 1 else "one GPU type, demands"

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the properties by which cases are counted."""
        terms = self.document["admission"]["parameters"]
        return (
            OWN if self.document["policy"] == OWN else "beside another policy",
            "powers of two" if terms["powers"] else "any share",
            "packing" if self.document["packing"] != "none" else "no packing",
            f"placement {self.document['placement']}",
            self.types,
            f"costs {self.costs.name}, {terms['start_s']:g} s and {terms['resize_s']:g} s allowed",
        )


def drawn(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(f"case {seed}")
    costs, (start_s, resize_s) = rng.choice(ALLOWANCES)
    policy = rng.choice((OWN, rng.choice(BESIDE)))
    packing = rng.choice(("none", "network"))
    powers = rng.choice((True, False)) if policy != OWN or packing == "none" else True
    terms = {"powers": powers, "start_s": start_s, "resize_s": resize_s}
    document = {
        "policy": policy,
        "parameters": terms if policy == OWN else {},
        "admission": {"name": "elasticflow", "parameters": terms},
        "packing": packing,
        "placement": rng.choice(("fewest-servers", "buddy")) if powers else "fewest-servers",
    }
    load = workload(
        seed,
        dents=rng.random() < 0.4,
        best_effort=rng.choice((0.0, 0.2, 0.4)),
        soft=rng.choice((0.0, 0.1)),
        turns=rng.random() < 0.4,
    )
    size = rng.choice((2, 4))
    cluster = servers(GPUS // size, size)
    of_types = random.Random(f"types {seed}")
    if of_types.random() < TYPED:
        cluster = typed_cluster(of_types)
        load = typed(load, of_types, cluster)
    return Case(seed, load, document, costs, cluster)


def replay(case: Case) -> Result:
    """Simulate a case."""
    scheduler = load_scheduler(case.document, f"case {case.seed}")
    assert case.load.deadline_s is not None
    setup = Setup(Assigned(case.load, case.load.deadline_s), case.cluster, case.costs, seed=0)
    return run(own_setups(setup, {"one": scheduler}).get("one", setup), scheduler.policy)


def promised(load: Workload, found: Result) -> Ints:
    """Return the numbers of the admitted jobs with hard deadlines."""
    assert load.deadline_s is not None
    assert load.soft is not None
    return np.flatnonzero(~np.isnan(load.deadline_s) & (load.soft == 0) & ~found.refused)


def late_s(load: Workload, found: Result) -> dict[JobId, float]:
    """Return the admitted jobs that ended after their deadline, with their lateness (s); inf: never ended."""
    assert load.deadline_s is not None
    jobs = promised(load, found)
    after_s = np.where(np.isnan(found.end_s[jobs]), math.inf, found.end_s[jobs] - load.deadline_s[jobs])
    return {load.names[job]: s for job, s in zip(jobs.tolist(), after_s.tolist(), strict=True) if s > LATE_S}


@dataclass(frozen=True)
class Verdict:
    """Verdict on a case, with its `settings`. `deadlines`: jobs with hard ones; `admitted`: those of them that were admitted;
    `late_s`: lateness of those that were late (s); `changes`: of shares while jobs ran."""

    seed: int
    settings: tuple[str, ...]
    deadlines: int
    admitted: int
    late_s: dict[JobId, float]
    changes: int


def judged(seed: int) -> Verdict:
    """Judge the case of a seed."""
    case = drawn(seed)
    found = replay(case)
    assert case.load.deadline_s is not None
    assert case.load.soft is not None
    hard = int(np.count_nonzero(~np.isnan(case.load.deadline_s) & (case.load.soft == 0)))
    late = late_s(case.load, found)
    return Verdict(seed, case.settings, hard, len(promised(case.load, found)), late, int(found.changes.sum()))
