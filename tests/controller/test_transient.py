"""Idle times between loans and gangs: counted, recovered, and jobs that do not grow onto GPUs that do not last."""

from __future__ import annotations

from elasticd.controller.recovery import differences
from elasticd.controller.state.idle import IdleRecord, record, recovered
from elasticd.protocol.messages import EndLoan, GetJob, GpusLent, LendGpus
from elasticd.protocol.model import ServerId
from elasticd.scheduler.transient import LEAST, Idle

from .world import World, job_spec

S1 = ServerId("s1")
ROUNDS = LEAST + 1


def borrow(world, job, idle_s: float, step: int, gpus: int = 2) -> None:
    """A borrower has GPUs for a minute, and leaves them idle for `idle_s` before."""
    world.pass_time(idle_s)
    answer = world.ask(LendGpus(gpus=gpus, for_s=1000.0))
    assert isinstance(answer, GpusLent), answer
    world.settle(job.id, step)
    world.pass_time(60.0)
    world.settle(job.id, step + 20)
    world.ask(EndLoan(loan=answer.loan))


def with_past(idle_s: float):
    """A job on four GPUs of a server; a borrower has given two of them back again and again, each time for `idle_s`."""
    world = World({"s1": 4})
    job = world.submit(job_spec(low=1, high=4, throughput={1: 10.0, 4: 40.0}))
    world.settle(job.id, 10)
    assert len(world.roster(job.id)) == 4
    for number in range(ROUNDS):
        borrow(world, job, idle_s, 100 * (number + 1))
    return world, job


def idle(world) -> Idle:
    return world.machine.cluster.experience.idle.servers[S1]


def test_times_between_loans_are_counted_and_a_job_does_not_grow_for_seconds() -> None:
    world, job = with_past(1.0)
    assert sum(idle(world).counts) == ROUNDS - 1
    world.turn()
    assert len(job.record.target) == 2, "GPUs that stay for a second are not worth a resize"
    told = world.ask(GetJob(job=job.id, explain=True))
    assert "a borrower takes them in about" in str(told)
    world.pass_time(30.0)
    world.settle(job.id, 5000)
    assert len(job.record.target) == 4, "this time they last"


def test_a_job_grows_again_and_again_for_minutes() -> None:
    world, job = with_past(120.0)
    world.turn()
    assert len(job.record.target) == 4


def test_idle_times_are_recovered() -> None:
    world, job = with_past(1.0)
    before = world.machine.cluster
    known = idle(world)
    world.restart(hello=False)
    assert idle(world) == known
    assert differences(before, world.machine.cluster) == ()
    world.hello("s1")
    world.turn()
    assert len(job.record.target) == 2


def test_records_of_another_version_or_with_odd_numbers_start_again() -> None:
    some = Idle().seen(1.0, frozenset({0, 1})).seen(5.0, frozenset({1})).seen(9.0, frozenset({0, 1}))
    assert recovered(record(some)) == some
    assert recovered(IdleRecord(counts=(1, 2))) == Idle()
    assert recovered(IdleRecord(counts=tuple([-1] * len(some.counts)))) == Idle()
