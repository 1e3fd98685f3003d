"""All workers of a job wait for each other, since their messages are lost: their generation is given up."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from elasticd.protocol.messages import EventKind, GetJob
from elasticd.protocol.model import Straggler, WorkerPhase

from .world import World, job_spec


def training(world) -> tuple[str, list[str], int]:
    job = world.submit(job_spec(low=4, high=4))
    world.settle(job.id)
    return job.id, world.roster(job.id), job.record.committed


def test_a_generation_whose_members_all_wait_for_each_other_is_given_up():
    world = World({"s1": 2, "s2": 2})
    job, members, generation = training(world)
    for member in members:
        assert world.job(job).record.committed == world.job(job).newest.generation
        world.report(member, WorkerPhase.TRAINING, generation, 10, waits_s=130.0)
    newest = world.job(job).newest
    assert newest.broken == (generation,)
    assert set(newest.roster.workers) == set(members), "nobody is lost"
    assert world.kinds(job).count(EventKind.STALLED) == 1
    assert "waited for each other for 130 s" in world.story()
    for member in members:
        world.report(member, WorkerPhase.TRAINING, generation, 10, waits_s=140.0)
    assert world.kinds(job).count(EventKind.STALLED) == 1


@pytest.mark.parametrize("slow", [0, 3])
def test_a_member_that_still_computes_is_waited_for(slow: int):
    world = World({"s1": 2, "s2": 2})
    job, members, generation = training(world)
    for _ in range(3):
        for number, member in enumerate(members):
            world.report(member, WorkerPhase.TRAINING, generation, 10, waits_s=0.0 if number == slow else 900.0)
    assert world.job(job).newest.broken == ()
    assert EventKind.STALLED not in world.kinds(job)


def test_waiting_in_an_earlier_generation_says_nothing_of_this_one():
    world = World({"s1": 2, "s2": 2})
    job, members, generation = training(world)
    for member in members:
        world.report(member, WorkerPhase.TRAINING, generation - 1, 10, waits_s=900.0)
    assert world.job(job).newest.broken == ()


def test_slow_workers_are_shown_as_the_leader_has_measured_them():
    world = World({"s1": 2, "s2": 2})
    job, members, generation = training(world)
    leader = world.job(job).committed_order.roster.leader
    slow = next(member for member in members if member != leader)
    found = Straggler(worker=slow, slowdown=2.04, since_s=world.now - 40.0, samples=22, hosts=1)
    other = next(member for member in members if member not in (leader, slow))
    world.report(other, WorkerPhase.TRAINING, generation, 10, stragglers=(replace(found, worker=other),))
    assert world.ask(GetJob(job=job)).job.reason == "", "it does not lead"
    world.report(leader, WorkerPhase.TRAINING, generation, 10, stragglers=(found,))
    said = f"{slow} on s"
    assert world.ask(GetJob(job=job)).job.reason.startswith(said)
    (reason,) = world.ask(GetJob(job=job, explain=True)).explanation.reasons
    assert (
        "takes 2.0 times as long as the others for a virtual worker, since 40 s ago (22 samples; false alarms: at most one in "
        "1,000,000), and hosts 1" in reason
    )
    world.report(leader, WorkerPhase.TRAINING, generation, 11, stragglers=(replace(found, slowdown=math.nan),))
    assert world.ask(GetJob(job=job)).job.reason == ""
