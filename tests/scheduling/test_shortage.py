"""The numbers in a waiting job's reason are those of the cluster, whatever part of it the policy was asked about."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticd.protocol.model import ServerId
from elasticd.scheduler.kinds import ANY
from elasticd.scheduler.pipeline import Decision, decide
from elasticd.scheduler.policies import NAMES
from elasticd.scheduler.view import ClusterView, Excluded, Gpus, Limit, ServerInView, Use

from .tables import Case, Described, cases, job, policy, table

SAID = re.compile(r"waits for (\d+) GPUs?: (\d+) of (\d+) (.*)")


def view(
    gpus: int, *jobs: Described, placements: Mapping[int, Gpus] | None = None, manual: Mapping[int, int] | None = None
) -> ClusterView:
    server = ServerInView(ServerId("s"), tuple(range(gpus)))
    return ClusterView(0.0, table(*jobs, most=max(16, gpus)), (server,), placements or {}, manual or {})


def run(name: str, seen: ClusterView) -> Decision:
    return decide(seen, policy(name), random.Random(0), packing=False)


def told(name: str, seen: ClusterView, row: int) -> str:
    reason = run(name, seen).why(row)
    return reason.text if reason is not None else ""


def test_behind_an_elastic_job_what_its_minimum_leaves_is_counted_not_what_it_has_grown_to() -> None:
    seen = view(4, job("elastic", 1, 4, share=4), job("large", 4, 4), placements={0: 0b1111})
    assert told("max-min", seen, 1) == "waits for 4 GPUs: 3 of 4 left by the minimums of earlier jobs"
    assert told("optimus", seen, 1) == "waits for 4 GPUs: 3 of 4 left by the minimums of earlier jobs"


def test_later_jobs_that_fit_beside_it_are_not_among_the_earlier_ones() -> None:
    seen = view(4, job("a", 2, 2), job("b", 3, 3), job("c", 1, 1))
    assert told("max-min", seen, 1) == "waits for 3 GPUs: 2 of 4 left by the minimums of earlier jobs"


def test_a_job_of_higher_priority_that_came_later_goes_first_and_is_not_called_earlier() -> None:
    seen = view(4, job("low", 2, 2), job("high", 3, 3, priority=10))
    assert told("max-min", seen, 0) == "waits for 2 GPUs: 1 of 4 left by the minimums of jobs that go first"


def test_gpus_set_by_hand_are_among_those_of_the_cluster() -> None:
    seen = view(4, job("hand", 1, 4), job("b", 1, 1), job("c", 2, 2), manual={0: 2})
    text = told("max-min", seen, 2)
    assert text == "waits for 2 GPUs: 1 of 4 left by the minimums of earlier jobs; hand has 2 GPUs by hand"


def test_a_rigid_job_is_told_what_it_is_given_or_nothing() -> None:
    seen = view(4, job("wide", 1, 8))
    assert told("fifo", seen, 0) == "is given all or none of 8 GPUs, the cluster has 4"


def test_gpus_that_are_lent_are_not_said_to_belong_to_jobs() -> None:
    whole = (ServerInView(ServerId("a"), (0, 1)), ServerInView(ServerId("b"), (0, 1)))
    excluded = (
        Excluded(Use.FIXED, (ServerInView(ServerId("b"), (1,)),)),
        Excluded(Use.LENT, (ServerInView(ServerId("a"), (0, 1)), ServerInView(ServerId("b"), (0,)))),
    )
    seen = ClusterView(0.0, table(job("q", 1, 1), most=4), (), {}, whole=whole, excluded=excluded)
    assert told("max-min", seen, 0) == "waits for 1 GPU: 1 of 4 belongs to jobs that cannot be resized, and 3 are lent"


@settings(max_examples=80)
@given(cases(most_jobs=6, most_gpus=8), st.integers(0, 3), st.booleans(), st.sampled_from([0, 10]))
def test_every_number_of_every_policy_is_that_of_the_decision(
    case: Case, by_hand: int, narrow: bool, priority: int
) -> None:
    free = list(range(case.gpus))
    placements: dict[int, Gpus] = {}
    jobs = []
    for row, one in enumerate(case.jobs):
        own, free = free[: one.share], free[one.share :]
        fits = len(own) == one.share > 0
        if fits:
            placements[row] = sum(1 << bit for bit in own)
        else:
            free = own + free
        waits = one if fits else replace(one, share=0, waiting_since_s=-50.0)
        jobs.append(replace(waits, priority=priority * (row % 2)))
    manual = {0: min(by_hand, jobs[0].max_gpus)} if by_hand and jobs and jobs[0].min_gpus <= by_hand else {}
    seen = view(case.gpus, *jobs, placements=placements, manual=manual)
    usable = (1 << case.gpus) - 1
    if narrow and jobs:
        usable >>= 1
        limit_of = np.array([row % 2 for row in range(len(jobs))])
        limits = (Limit(ANY, ((1 << case.gpus) - 1,)), Limit(ANY, (usable,) if usable else ()))
        seen = ClusterView(0.0, seen.jobs, seen.servers, placements, manual, limits=limits, limit_of=limit_of)
    for name in NAMES:
        found = run(name, seen)
        for row in np.flatnonzero(found.shares == 0).tolist():
            for reason in found.every(row):
                said = SAID.match(reason.text)
                if said is None or row in manual:
                    continue
                mask = usable if narrow and row % 2 else (1 << case.gpus) - 1
                has = {other: (gpus & mask).bit_count() for other, gpus in found.placements.items()}
                if "may be used by it" in said[4]:
                    assert int(said[2]) == mask.bit_count(), f"{name}: {reason.text}"
                    continue
                assert int(said[3]) == mask.bit_count(), f"{name}: {reason.text}"
                assert int(said[2]) < int(said[1]) <= int(said[3]), f"{name}: {reason.text}"
                if "minimums" not in said[4] and not said[4].startswith("free, and"):
                    assert int(said[2]) == mask.bit_count() - sum(has.values()), f"{name}: {reason.text}"
