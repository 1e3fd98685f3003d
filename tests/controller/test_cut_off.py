"""Servers that reach the controller and not each other: a job continues on one side of the partition."""

from __future__ import annotations

from typing import Any

from elasticd.controller.jobs.generations import cut_off, unconnected
from elasticd.protocol.messages import EventKind, StopWorker
from elasticd.protocol.model import Fault, WorkerPhase
from elasticd.protocol.times import CUT_OFF_TIMEOUT_S

from .world import World, job_spec


def broken(servers: dict[str, int], low: int = 1) -> tuple[Any, str, list[str]]:
    """A job on all GPUs with a failed communicator: its workers must meet again."""
    world = World(servers)
    job = world.submit(job_spec(low=low, high=sum(servers.values()))).id
    world.settle(job)
    first = world.roster(job)[0]
    world.report(first, WorkerPhase.BROKEN, world.job(job).record.committed, 10)
    assert world.job(job).record.generation > world.job(job).record.committed
    return world, job, world.roster(job)


def stand_apart(world: Any, members: list[str], apart: list[str]) -> None:
    """Let all workers stand still, with the network cut between the leader (the first member) and the workers in `apart`."""
    generation = world.job(members[0].rpartition(".")[0]).record.committed
    for member in members:
        unheard = apart if member == members[0] else members[:1] if member in apart else []
        world.report(member, WorkerPhase.BROKEN, generation, 10, unheard=unheard)


def test_those_whom_the_leader_does_not_hear_are_left_behind_after_a_while() -> None:
    world, job, members = broken({"s1": 2, "s2": 2})
    stand_apart(world, members, members[2:])
    world.pass_time(CUT_OFF_TIMEOUT_S - 5)
    assert world.roster(job) == members, "it may be over in a moment"
    world.pass_time(6)
    assert world.roster(job) == members[:2]
    assert {message.worker for message in world.messages(StopWorker)} == set(members[2:])
    (told,) = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.CUT_OFF]
    assert "s1" in told
    assert "s2" in told
    assert {gpu.server for gpu in world.job(job).record.target} == {"s1"}, "it does not grow back at once"
    world.reap()
    assert {entry.fault for entry in world.job(job).record.past} == {Fault.LOST}


def test_who_is_heard_again_in_time_stays() -> None:
    world, job, members = broken({"s1": 1, "s2": 1})
    stand_apart(world, members, members[1:])
    world.pass_time(CUT_OFF_TIMEOUT_S / 2)
    stand_apart(world, members, [])
    world.pass_time(CUT_OFF_TIMEOUT_S)
    assert world.roster(job) == members
    assert EventKind.CUT_OFF not in world.kinds(job)


def test_one_who_does_not_answer_because_it_is_busy_is_waited_for() -> None:
    """Only the leader misses a worker, which is still in its step, and misses no other."""
    world, job, members = broken({"s1": 1, "s2": 1})
    generation = world.job(job).record.committed
    world.report(members[0], WorkerPhase.BROKEN, generation, 10, unheard=members[1:])
    world.report(members[1], WorkerPhase.BROKEN, generation, 10)
    world.pass_time(2 * CUT_OFF_TIMEOUT_S)
    assert world.roster(job) == members


def test_a_leader_that_less_than_half_can_hear_makes_room() -> None:
    world, job, members = broken({"s1": 1, "s2": 1, "s3": 1})
    stand_apart(world, members, members[1:])
    world.pass_time(CUT_OFF_TIMEOUT_S + 1)
    assert world.roster(job) == members[1:]


def test_a_gang_that_would_be_too_small_for_good_tries_again_with_other_workers() -> None:
    world, job, members = broken({"s1": 1, "s2": 1}, low=2)
    stand_apart(world, members, members[1:])
    world.pass_time(CUT_OFF_TIMEOUT_S + 1)
    assert len(world.job(job).record.target) == 2
    assert EventKind.HELD not in world.kinds(job)


def cannot_connect(world: Any, members: list[str], trains: str = "") -> None:
    """All hear each other, and cannot build a communicator; `trains` continues in the old one."""
    generation = world.job(members[0].rpartition(".")[0]).record.committed
    for member in members:
        phase = WorkerPhase.TRAINING if member == trains else WorkerPhase.BROKEN
        world.report(member, phase, generation, 10, unconnected_s=70.0)


def test_a_job_that_cannot_connect_its_servers_goes_on_with_that_of_its_leader() -> None:
    world, job, members = broken({"s1": 2, "s2": 2})
    cannot_connect(world, members)
    world.pass_time(CUT_OFF_TIMEOUT_S - 5)
    assert world.roster(job) == members
    world.pass_time(6)
    assert world.roster(job) == members[:2]
    (told,) = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.CUT_OFF]
    assert "cannot exchange data" in told
    assert EventKind.HELD in world.kinds(job)


def test_workers_of_one_server_that_cannot_connect_leave_the_leader_alone() -> None:
    world, job, members = broken({"s1": 3})
    cannot_connect(world, members)
    world.pass_time(CUT_OFF_TIMEOUT_S + 1)
    assert world.roster(job) == members[:1]


def test_a_job_that_trains_meanwhile_waits_until_its_newcomers_can_be_connected() -> None:
    world, job, members = broken({"s1": 2, "s2": 2})
    cannot_connect(world, members, trains=members[0])
    world.pass_time(CUT_OFF_TIMEOUT_S + 1)
    assert world.roster(job) == members


def test_nobody_is_left_behind_by_an_order_that_has_come_about() -> None:
    """Earlier statuses may still report failed builds and missed workers."""
    world, name, members = broken({"s1": 2, "s2": 2})
    job, apart = world.job(name), tuple(members[2:])
    committed, ordered = job.record.committed, job.record.generation
    stand_apart(world, members, members[2:])
    assert cut_off(job) == apart
    job.update(committed=ordered)
    assert cut_off(job) == ()
    job.update(committed=committed)
    cannot_connect(world, members)
    assert unconnected(job) == apart
    job.update(committed=ordered)
    assert unconnected(job) == ()
