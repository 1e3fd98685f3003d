"""A large gang beside a stream of small ones: the controller reserves GPUs for it, and `status` shows that."""

from __future__ import annotations

from typing import Any

import pytest

from elasticd.protocol.messages import Cancel, GetJob, SetPolicy
from elasticd.protocol.model import JobPhase, Severity, Trouble, WorkerPhase
from elasticd.protocol.times import JOIN_NOTICE_S
from elasticd.scheduler.policies import POLICIES

from .world import World, job_spec

AFTER_S = 30.0


def command(name: str, gpus: int, **changes: Any):
    return job_spec(name, gpus, gpus, restarts=0, **changes)


def running(world, *jobs) -> list[str]:
    return [job.id for job in jobs if world.running(job.id)]


def finish(world, job) -> None:
    for worker in world.running(job.id):
        world.exit(worker, 0)
    world.turn()


def detail(world, job) -> str:
    return world.ask(GetJob(job=job.id)).job.reason


def crowded(servers=None, policy: str = "max-min", **settings: Any):
    """Small gangs on all GPUs, and a large one that has waited for a while."""
    world = World(servers or {"s1": 4}, policy=policy, reserve_after_s=AFTER_S, **settings)
    total = sum((servers or {"s1": 4}).values())
    old = [world.submit(command("old", 1)) for _ in range(total)]
    world.pass_time(3)
    assert running(world, *old) == [job.id for job in old]
    big = world.submit(command("big", 3))
    world.pass_time(AFTER_S + 1)
    return world, old, big


@pytest.mark.parametrize("policy", [kind.name for kind in POLICIES])
def test_a_large_gang_starts_when_enough_of_the_small_ones_have_ended(policy):
    world, old, big = crowded(policy=policy)
    small = []
    for job in old[:3]:
        small.append(world.submit(command("small", 1)))
        finish(world, job)
        world.pass_time(3)
    assert len(world.running(big.id)) == 3
    assert running(world, *small) == []
    finish(world, big)
    world.pass_time(3)
    assert running(world, *small)


def test_status_says_for_whom_gpus_are_held():
    world, old, big = crowded()
    small = world.submit(command("small", 1))
    finish(world, old[0])
    world.pass_time(3)
    assert detail(world, small) == f"GPUs are being held for {big.id}, which waits for 3 GPUs and has 1 of them so far"
    assert detail(world, big) == "waits for 3 GPUs: 1 held for it, 2 in use by jobs that keep them"


def test_a_job_gets_a_reservation_though_nothing_else_happens():
    world = World({"s1": 4}, reserve_after_s=AFTER_S)
    old = world.submit(command("old", 2))
    world.pass_time(3)
    big = world.submit(command("big", 4))
    world.pass_time(AFTER_S - 5)
    assert world.machine.cluster.jobs.reserved is None
    world.pass_time(10)
    assert world.machine.cluster.jobs.reserved == big.id
    small = world.submit(command("small", 1))
    world.pass_time(3)
    assert running(world, small) == []
    finish(world, old)
    world.pass_time(3)
    assert running(world, big) == [big.id]


def test_a_new_controller_holds_gpus_again():
    world, old, big = crowded()
    finish(world, old[0])
    world.restart()
    small = world.submit(command("small", 1))
    world.pass_time(3)
    assert running(world, small) == []
    assert world.machine.cluster.jobs.reserved == big.id


def test_a_new_controller_holds_gpus_for_the_same_job_though_an_older_one_could_have_the_reservation():
    world = World({"s1": 4, "s2": 2}, reserve_after_s=AFTER_S)
    old = [world.submit(command("old", 1)) for _ in range(6)]
    world.pass_time(3)
    world.trouble("s2", Trouble(code="disk-full", severity=Severity.NO_NEW_WORK, text="the disk is full"))
    world.submit(command("huge", 5))
    big = world.submit(command("big", 3))
    world.pass_time(AFTER_S + 1)
    assert world.machine.cluster.jobs.reserved == big.id
    world.trouble("s2")
    world.pass_time(3600)
    assert world.machine.cluster.jobs.reserved == big.id
    world.restart()
    world.pass_time(AFTER_S + 3)
    assert world.machine.cluster.jobs.reserved == big.id
    for job in old[:3]:
        finish(world, job)
    world.pass_time(3)
    assert running(world, big) == [big.id]
    finish(world, old[3])
    world.pass_time(AFTER_S + 3)
    assert not world.job(big.id).record.reserved


def test_elastic_jobs_use_what_is_held_until_it_is_enough():
    world, old, big = crowded()
    elastic = world.submit(job_spec("elastic", 1, 4))
    finish(world, old[0])
    world.pass_time(3)
    (worker,) = world.running(elastic.id)
    world.report(worker, WorkerPhase.TRAINING, generation=1, applied=1)
    assert world.job(elastic.id).elastic
    finish(world, old[1])
    finish(world, old[2])
    world.pass_time(3)
    assert big.record.target, "the elastic job gives way"


def test_who_only_says_that_it_joins_is_let_begin_until_one_has_not():
    world, old, _ = crowded()
    liar = world.submit(job_spec("liar", 1, 2))
    finish(world, old[0])
    world.pass_time(3)
    assert running(world, liar) == [liar.id]
    world.pass_time(JOIN_NOTICE_S + 1)
    assert world.job(liar.id).record.phase is JobPhase.RUNNING
    another = world.submit(job_spec("another", 1, 2))
    finish(world, old[1])
    world.pass_time(3)
    assert running(world, another) == []


def test_a_reservation_ends_with_its_job():
    world, old, big = crowded()
    small = world.submit(command("small", 1))
    finish(world, old[0])
    world.pass_time(3)
    assert running(world, small) == []
    world.ask(Cancel(job=big.id))
    world.pass_time(3)
    assert running(world, small) == [small.id]


def test_nothing_is_held_for_a_job_that_does_not_fit_into_the_gpus_that_work():
    world, old, _ = crowded({"s1": 2, "s2": 1})
    world.trouble("s2", Trouble(code="xid-79", severity=Severity.NO_NEW_WORK, text="has fallen off the bus"))
    small = world.submit(command("small", 1))
    finish(world, next(job for job in old if job.record.target[0].server == "s1"))
    world.pass_time(3)
    assert running(world, small) == [small.id]
    assert world.machine.cluster.jobs.reserved is None


def test_a_dry_run_of_another_policy_reckons_with_the_reservation():
    world, old, big = crowded()
    small = world.submit(command("small", 1))
    finish(world, old[0])
    answer = world.ask(SetPolicy(document={"policy": "fifo"}, source="test", dry_run=True))
    assert small.id not in [share.job for share in answer.shares]
    assert world.machine.cluster.jobs.reserved == big.id


def test_a_dry_run_keeps_off_gpus_that_take_no_new_work():
    world = World({"s1": 2})
    job = world.submit(job_spec("runs", 1, 2))
    world.settle(job.id)
    assert len(job.record.target) == 2
    bad = (Trouble(code="ecc-pending", gpu=gpu, severity=Severity.NO_NEW_WORK, text="bad memory") for gpu in (0, 1))
    world.trouble("s1", *bad)
    other = world.submit(job_spec("waits", 1, 1))
    assert not other.record.target
    answer = world.ask(SetPolicy(document={"policy": "max-min"}, source="test", dry_run=True))
    assert other.id not in [one.job for one in answer.shares]
