"""Scripts whose workers take decisions together between two steps, and communicators that fail while they do.

A worker that has heard a decision is further than one that has applied the same step and has not: only those who know the most
decisions hold the state (`worker.between`). So a link fails, or a worker dies, just while a decision arrives. The state of such a
job is that of its steps and of the last decision: members that do not know the same one do not agree on the state.

The communicators of the same histories stand at some members and fail at one, so that the next attempt begins while words of the
one before are on their way; where lines are bad, many words are late and doubled.

Three remainders of seeds have such scripts. What is drawn for them comes from a stream of its own.
"""

from __future__ import annotations

import random
from dataclasses import replace

from .plan import BAD_LINES, Contract, Ending, Fault, Kind, Moment, Plan

EVERY, SEEDS = 40, (21, 22, 23)  # of so many seeds these
BREAKS, BUILDS, RESIZES = 20, 20, 16  # times that something fails, that a communicator is not built, that users resize
DRAWN = (Kind.BREAK_LINK, Kind.BREAK_LINK, Kind.KILL_WORKER)


def with_agreements(plan: Plan) -> Plan:
    """The plan of a history with such scripts, if its seed is that of one; else `plan` itself."""
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
