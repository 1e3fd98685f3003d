"""A preempted job with a failed saver: another worker saves, and all end afterwards."""

from __future__ import annotations

from typing import Any

from elasticd.controller.reconcile.saving import save_grace_s, turn_of
from elasticd.protocol.messages import Cancel, EventKind, StopWorker
from elasticd.protocol.model import WorkerPhase
from elasticd.protocol.times import STOP_AGAIN_S, STOP_GRACE_S

from .world import World, job_spec


def preempted() -> tuple[Any, str, list[str], int]:
    """A job on three servers that has just been preempted; its saver is first."""
    world = World({"s1": 1, "s2": 1, "s3": 1}, policy="srtf")
    job = world.submit(job_spec("long", 3, 3, max_steps=10_000))
    world.settle(job.id)
    generation = job.record.committed
    world.submit(job_spec("short", 3, 3, max_steps=1, throughput={3: 1000.0}))
    world.turn()
    if job.record.target:
        raise AssertionError(world.story())
    stops = [stop for stop in world.messages(StopWorker) if stop.job == job.id]
    (saver,) = {stop.saver for stop in stops}
    others = [stop.worker for stop in stops if stop.worker != saver]
    world.sent.clear()
    return world, job.id, [saver, *others], generation


def told(world: Any) -> list[tuple[str, str | None, int | None]]:
    """Orders to stop as (server, saver, saved step)."""
    stops = [(stop.worker, stop.saver, stop.saved) for stop in world.messages(StopWorker)]
    world.sent.clear()
    return stops


def test_when_the_state_is_saved_all_who_stand_by_are_told_so_once():
    world, _, (saver, second, third), generation = preempted()
    world.report(second, WorkerPhase.TRAINING, generation, 10)
    world.report(third, WorkerPhase.TRAINING, generation, 10)
    assert told(world) == []
    world.report(saver, WorkerPhase.TRAINING, generation, 10, saved=10)
    world.report(saver, WorkerPhase.TRAINING, generation, 10, saved=10)
    assert sorted(told(world)) == sorted((worker, saver, 10) for worker in (saver, second, third))


def test_who_has_been_told_that_its_state_is_saved_is_told_again_after_one_more_step():
    world, _, (saver, second, third), generation = preempted()
    for worker in (second, third):
        world.report(worker, WorkerPhase.TRAINING, generation, 10)
    world.report(saver, WorkerPhase.TRAINING, generation, 10, saved=10)
    assert {saved for _, _, saved in told(world)} == {10}, "a checkpoint of the step before"
    for worker in (second, third):
        world.report(worker, WorkerPhase.TRAINING, generation, 11)
    world.report(saver, WorkerPhase.TRAINING, generation, 11, saved=11)
    assert {(worker, saved) for worker, _, saved in told(world) if saved == 11} == {
        (worker, 11) for worker in (saver, second, third)
    }


def test_what_is_saved_of_an_earlier_step_does_not_dismiss():
    world, _, (saver, second, _), generation = preempted()
    world.report(second, WorkerPhase.TRAINING, generation, 10)
    world.report(saver, WorkerPhase.TRAINING, generation, 10, saved=9)
    assert told(world) == []


def test_another_one_is_named_when_the_saver_fails_and_each_has_its_turn():
    world, job, (saver, second, third), generation = preempted()
    for worker in (second, third, saver):
        world.report(worker, WorkerPhase.TRAINING, generation, 10)
    world.report(saver, WorkerPhase.TRAINING, generation, 10, save_failures=1)
    assert {(worker, named) for worker, named, _ in told(world)} == {(w, second) for w in (saver, second, third)}
    assert EventKind.SAVER in world.kinds(job)
    world.report(second, WorkerPhase.TRAINING, generation, 10, save_failures=1)
    assert {named for _, named, _ in told(world)} == {third}
    world.report(third, WorkerPhase.TRAINING, generation, 10, save_failures=1)
    assert told(world) == [], "all have failed as often: it tries again"


def test_another_one_is_named_when_the_saver_is_lost():
    world, _, (saver, second, third), generation = preempted()
    for worker in (saver, second, third):
        world.report(worker, WorkerPhase.TRAINING, generation, 10)
    world.exit(saver, -9)
    assert {named for _, named, _ in told(world)} == {second}


def test_another_one_has_no_more_time_than_the_first():
    world, job, (saver, second, _), generation = preempted()
    world.report(second, WorkerPhase.TRAINING, generation, 10)
    until_s = {entry.worker: entry.stop_by_s for entry in world.job(job).workers}
    world.pass_time(10)
    world.report(saver, WorkerPhase.TRAINING, generation, 10, save_failures=1)
    assert second in {stop.worker for stop in world.messages(StopWorker)}
    assert {entry.worker: entry.stop_by_s for entry in world.job(job).workers} == until_s


def test_the_next_controller_sees_to_it_likewise():
    world, job, (saver, second, _), generation = preempted()
    world.report(second, WorkerPhase.TRAINING, generation, 10)
    world.report(saver, WorkerPhase.TRAINING, generation, 10, save_failures=1)
    world.restart()
    world.sent.clear()
    world.report(second, WorkerPhase.TRAINING, generation, 10, saved=10)
    world.report(saver, WorkerPhase.TRAINING, generation, 10, save_failures=2)
    assert (saver, 10) in {(worker, saved) for worker, _, saved in told(world)}
    assert world.job(job).record.saved_step == 10


def test_an_agent_that_has_not_heard_that_its_worker_is_to_end_is_told_again_and_again():
    world = World({"s1": 2})
    job = world.submit(job_spec("long", 2, 2))
    world.settle(job.id)
    world.ask(Cancel(job=job.id))
    world.sent.clear()
    world.pass_time(STOP_GRACE_S + STOP_AGAIN_S + 1)
    assert sorted(stop.worker for stop in world.messages(StopWorker)) == sorted(world.running(job.id))
    world.pass_time(STOP_AGAIN_S)
    assert len(world.messages(StopWorker)) == 4
    world.reap()
    world.pass_time(2 * STOP_AGAIN_S)
    assert len(world.messages(StopWorker)) == 4


def test_another_one_is_named_when_half_of_the_time_has_passed_without_a_word():
    world, _, (saver, second, third), generation = preempted()
    for worker in (saver, second, third):
        world.report(worker, WorkerPhase.TRAINING, generation, 10)
    world.pass_time(13)
    assert told(world) == []
    world.pass_time(3)
    assert {named for _, named, _ in told(world)} == {second}
    world.pass_time(8)
    assert {named for _, named, _ in told(world)} == {third}
    world.report(saver, WorkerPhase.TRAINING, generation, 10, saved=10)
    assert {saved for _, _, saved in told(world)} == {10}, "it has gone on, and counts"


def test_a_turn_is_half_of_what_is_left_whatever_the_clock_has_done_meanwhile():
    world, name, (saver, *_), _ = preempted()
    job = world.job(name)
    whole_s = save_grace_s(job)
    assert turn_of(job, saver, world.now) == world.now + whole_s / 2
    for odd_s in (-5.0, 3600.0):  # its agent has heard of it late; the clock was set back
        job.update_worker(saver, stop_by_s=world.now + odd_s)
        assert turn_of(job, saver, world.now) == world.now + whole_s / 2
    job.update_worker(saver, stop_by_s=world.now + 8.0)
    assert turn_of(job, saver, world.now) == world.now + 4.0


def test_a_controller_that_was_stopped_gives_no_turn_that_lasts_longer_than_the_agents_wait():
    world, name, (saver, *_), _ = preempted()
    job = world.job(name)
    by_s = job.worker(saver).stop_by_s
    job.leave_out(world.now, world.now + 20.0)
    assert job.worker(saver).stop_by_s == by_s
    assert world.now + 20.0 < job.saving.until_s < by_s
    job.leave_out(world.now + 20.0, world.now - 3600.0)
    assert job.worker(saver).stop_by_s == by_s - 3620.0
    assert job.saving.until_s < by_s - 3620.0
