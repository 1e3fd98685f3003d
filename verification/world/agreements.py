"""Scripts whose workers take decisions together between two steps, and communicators that fail while they do.

Of two workers that have applied the same step, the one that has heard the decision after it is ahead: only the workers that know
the most decisions hold the state (`worker.step_boundary`). So a link fails, or a worker dies, just while a decision arrives. The
state of such a job is that of its steps and of its last decision: members that know different decisions disagree about the state.

In the same histories communicators complete at some members and fail at one, so that the next attempt begins while messages of
the previous one are in flight; in bad weather, many messages are late and duplicated.

Seeds with three of the remainders have such scripts. Their random numbers come from a separate stream.
"""

from __future__ import annotations

import random
from dataclasses import replace

from .drawing import BAD_LINES
from .plan import Contract, Ending, Fault, Kind, Moment, Plan

EVERY, SEEDS = 40, (21, 22, 23)  # seeds with these remainders modulo EVERY
BREAKS, BUILDS, RESIZES = 20, 20, 16  # numbers of: failures; communicators that are not built; resizes by users
DRAWN = (Kind.BREAK_LINK, Kind.BREAK_LINK, Kind.KILL_WORKER)


def with_agreements(plan: Plan) -> Plan:
    """`plan` with such scripts if its seed has one of the remainders, else `plan` unchanged."""
    if plan.seed % EVERY not in SEEDS or not plan.faults:
        return plan
    chance = random.Random(f"{plan.seed}/agreements")
    faults = [_fault(chance, plan, chance.choice(DRAWN), Moment.AGREE) for _ in range(BREAKS)]
    faults += [_fault(chance, plan, Kind.BREAK_BUILD, Moment.AT_ONCE) for _ in range(BUILDS)]
    faults += [_fault(chance, plan, Kind.SCALE, Moment.AT_ONCE) for _ in range(RESIZES)]
    jobs = tuple(
        replace(job, script=replace(job.script, agrees_every=chance.choice((2, 3, 5)), ending=Ending.TRAINS))
        if job.script.ending.joins
        else job
        for job in plan.jobs
    )
    weather = plan.weather
    if weather.contract is not Contract.TCP:
        weather = replace(weather, late=BAD_LINES, copies=BAD_LINES)
    together = sorted((*plan.faults, *faults), key=lambda fault: fault.at)
    return replace(plan, jobs=jobs, faults=tuple(together), weather=weather)


def _fault(chance: random.Random, plan: Plan, kind: Kind, moment: Moment) -> Fault:
    return Fault(round(chance.uniform(5, plan.storm_s), 3), kind, chance.randrange(1000), 0.0, moment)
