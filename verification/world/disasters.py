"""Histories of disasters: failures that need two or three coinciding faults, one such coincidence after the other.

A tenth of the histories (by their seeds) has disasters in place of its other faults: all workers of a job die while a server does
not see the checkpoints; a partitioned server trains on while its jobs continue elsewhere; the controller's disk is full just when
a user sends a request; the store is lost or restored while jobs train; data between one server and the others is blocked for
good; building a communicator takes long. Or, without any fault, jobs that need all GPUs preempt others during their evaluation.

All random numbers come from a separate stream, so that the other histories stay unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec

from elasticd.protocol.model import CheckpointSpec, GpuRange, JobSpec

from .plan import CONNECT_S, LIMITS, Fault, JobPlan, Kind, Moment, Plan, Script

EVERY, SEEDS = 20, (8, 19)  # seeds with these remainders modulo EVERY: one of each weather
DISASTERS, BETWEEN_S = 8, 60.0
AT_LAST_S = 490.0  # last, since a lost store has no promises to jobs
LONG_JOBS, STEPS, STEP_S = 3, 120, 4.0
GANG_STEPS = 20
FOR_GOOD_S = 1e5
SLOW_CONNECT_S = 22.0  # within the limit for building a communicator

Disaster = Callable[[random.Random, float], list[Fault]]


def with_disasters(plan: Plan) -> Plan:
    """Return the plan of a history of disasters if the seed has one of the remainders, else `plan` unchanged."""
    if plan.seed % EVERY not in SEEDS or not plan.faults:
        return plan
    chance = random.Random(f"{plan.seed}/disasters")
    kind = chance.choices(("storm", "apart", "gangs"), (3, 3, 2))[0]
    jobs = [_long_job(chance, f"job{chr(97 + i)}", kind == "gangs") for i in range(LONG_JOBS)]
    faults = _apart(chance) if kind == "apart" else []
    for i in range(DISASTERS):
        at = round(30 + (i + chance.uniform(0, 0.5)) * BETWEEN_S, 3)
        if kind == "gangs" and i % 3 == 0:
            jobs.append(_gang(chance, at, f"gang{chr(97 + i)}", plan.servers * plan.gpus))
        elif kind != "gangs":
            faults += chance.choice(_DISASTERS)(chance, at)
    if chance.random() < 0.5:
        faults += _store_replaced(chance, AT_LAST_S)
    return replace(
        plan,
        policy={"storm": plan.policy, "apart": "max-min", "gangs": "srtf"}[kind],
        jobs=tuple(jobs),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        connect_s=SLOW_CONNECT_S if chance.random() < 0.25 else CONNECT_S,
    )


# ---------------------------------------------------------------------------------------------------------------- jobs


def _long_job(chance: random.Random, name: str, evaluates: bool) -> JobPlan:
    most = chance.choice((1, 2, 8))
    spec = JobSpec(
        name=name,
        command=("python", "train.py"),
        gpus=GpuRange(min=1, max=1 if evaluates else most),
        virtual_workers=8,
        workdir="/home/user",
        checkpoint=CheckpointSpec(every_s=10.0),
        max_steps=STEPS,
        **LIMITS,
    )
    script = Script(
        steps=STEPS,
        step_s=STEP_S,
        start_s=chance.uniform(1, 8),
        save_s=chance.uniform(0.1, 3.0),
        evaluate_every=10 if evaluates else 0,
        evaluate_s=60.0,  # longer than the grace period of a worker without a measured evaluation
        registers=chance.random() < 0.4,
    )
    return JobPlan(round(chance.uniform(1, 10 if evaluates else 200), 3), spec, script)


def _gang(chance: random.Random, at: float, name: str, gpus: int) -> JobPlan:
    """Return a short job that needs every GPU: all other jobs are preempted."""
    job = _long_job(chance, name, evaluates=False)
    spec = msgspec.structs.replace(
        job.spec, gpus=GpuRange(min=gpus, max=gpus), virtual_workers=max(8, gpus), max_steps=GANG_STEPS
    )
    return JobPlan(at, spec, replace(job.script, steps=GANG_STEPS, step_s=1.0))


# ------------------------------------------------------------------------------------------------------------- disasters


def _who(chance: random.Random) -> int:
    return chance.randrange(1000)


def _everybody(chance: random.Random) -> int:
    """Return the `who` of a cut that separates a server from the other servers, too."""
    return 2 * chance.randrange(500) + 1


def _unseen(chance: random.Random, at: float) -> list[Fault]:
    lasts_s, first = round(chance.uniform(10, 40), 1), _who(chance)
    servers = [first, first + 1][: chance.choice((1, 2))]
    hidden = [Fault(at, Kind.HIDE_STORAGE, server, lasts_s) for server in servers]
    return [*hidden, Fault(at + 1, Kind.KILL_JOB, _who(chance), 0.0), Fault(at + 2, Kind.KILL_JOB, _who(chance), 0.0)]


def _cut_off(chance: random.Random, at: float) -> list[Fault]:
    return [Fault(at, Kind.CUT_BOTH, _everybody(chance), round(chance.uniform(20, 50), 1))]


def _store_away(chance: random.Random, at: float) -> list[Fault]:
    kind = chance.choice((Kind.FILL_STORE, Kind.LOCK_STORE))
    lasts_s = round(chance.uniform(5, 30), 1)
    away = Fault(at, kind, 0, lasts_s, Moment.REQUEST)
    asked = [Fault(at + 0.1, Kind.SCALE, _who(chance), 0.0), Fault(at + 3, Kind.SCALE, _who(chance), 0.0)]
    return [away, *asked, Fault(at + 4, Kind.KILL_WORKER, _who(chance), 0.0)]


def _controller_away(chance: random.Random, at: float) -> list[Fault]:
    kind = chance.choice((Kind.KILL_CONTROLLER, Kind.STOP_CONTROLLER))
    away = Fault(at, kind, 0, round(chance.uniform(12, 30), 1))
    return [away, Fault(at + 5, Kind.KILL_WORKER, _who(chance), 0.0)]


def _server_off(chance: random.Random, at: float) -> list[Fault]:
    off = Fault(at, Kind.LOSE_SERVER, _who(chance), round(chance.uniform(15, 50), 1))
    return [off, Fault(at + chance.uniform(0, 20), Kind.KILL_JOB, _who(chance), 0.0)]


def _store_replaced(chance: random.Random, at: float) -> list[Fault]:
    kind = chance.choice((Kind.LOSE_STORE, Kind.RESTORE_STORE))
    return [Fault(at, kind, 0, round(chance.uniform(0.5, 5), 1))]


_DISASTERS: tuple[Disaster, ...] = (_unseen, _unseen, _cut_off, _cut_off, _store_away, _controller_away, _server_off)


def _apart(chance: random.Random) -> list[Fault]:
    """Messages between one server and the others pass, data never again."""
    return [Fault(round(chance.uniform(10, 300), 3), Kind.CUT_DATA, _who(chance), FOR_GOOD_S)]
