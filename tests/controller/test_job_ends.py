"""How jobs end: finished, cancelled, preempted."""

from __future__ import annotations

from elasticd.controller.jobs.generations import anyone_holds
from elasticd.controller.reconcile.saving import suspend
from elasticd.protocol.messages import (
    Cancel,
    Cancelled,
    EventKind,
    ForgetWorkers,
    GetJob,
    StopWorker,
)
from elasticd.protocol.model import GpuAddress, JobPhase, WorkerPhase

from .world import World, job_spec, one_running

B = WorkerPhase.BROKEN


def test_a_job_is_finished_when_its_leader_exits_with_zero_and_the_rest_have_a_moment():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.report(first, WorkerPhase.FINISHED, job.record.committed, 99)
    world.exit(first, 0)
    assert job.record.phase is JobPhase.FINISHED
    assert world.messages(StopWorker) == []
    world.pass_time(6)
    assert [stop.worker for stop in world.messages(StopWorker)] == [second]
    world.exit(second, -15)
    assert not job.workers
    assert world.ask(GetJob(job=job.id)).job.step == 99


def test_a_leader_that_is_lost_after_the_training_leaves_its_last_work_to_a_restart():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    for worker in (first, second):
        world.report(worker, WorkerPhase.FINISHED, job.record.committed, 99)
    world.exit(second, 0)
    assert not job.final  # the leader is still saving the model
    world.exit(first, -9)
    world.pass_time(2)
    assert not job.final
    assert job.record.restarts == 1
    assert world.roster(job.id)


def test_a_leader_that_those_who_train_do_not_know_is_replaced():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec("digits", 1, 1))
    world.arrive(job.id)
    (first,) = world.roster(job.id)
    job.update(target=(GpuAddress(server="s2", index=0),))  # moved before any worker has reported training
    world.machine.cluster.jobs.mark_dirty(job)
    world.turn()
    assert first not in world.roster(job.id)
    world.report(first, WorkerPhase.TRAINING, 1, 3)
    world.turn()
    assert job.newest.roster.leader == first
    assert first in world.roster(job.id)


def test_a_script_that_fails_before_its_loop_fails_no_job_of_which_another_worker_has_the_state():
    world = World({"s1": 2})
    job = world.submit(job_spec("digits", 1, 2))
    first, second = world.running(job.id)
    world.report(first, WorkerPhase.TRAINING, 1, -1)
    world.report(second, WorkerPhase.READY)
    assert anyone_holds(job)
    assert not job.record.progressed
    world.exit(second, 1)
    assert not job.final


def test_no_order_is_given_to_a_job_that_is_at_its_end():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.report(first, WorkerPhase.FINISHED, job.record.committed, 99)
    generation = job.record.generation
    world.exit(second, -9)
    assert job.record.generation == generation
    world.exit(first, 0)
    assert job.record.phase is JobPhase.FINISHED


def test_no_order_is_given_when_others_have_ended_before_their_leader_has_said_that_it_is_at_the_end():
    world = World()
    job = one_running(world, 3)
    first, second, third = world.roster(job.id)
    generation = job.record.generation
    for worker in (second, third):
        world.report(worker, WorkerPhase.FINISHED, job.record.committed, 99)
        world.exit(worker, 0)
    assert job.record.generation == generation
    world.report(first, WorkerPhase.FINISHED, job.record.committed, 99)
    world.exit(first, 0)
    assert job.record.phase is JobPhase.FINISHED
    assert job.record.generation == generation


def test_a_leader_that_needs_its_fellows_for_the_last_step_goes_on_without_those_that_have_ended():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.report(second, WorkerPhase.FINISHED, job.record.committed, 99)
    world.exit(second, 0)
    world.report(first, B, job.record.committed, 98)
    assert world.roster(job.id) == [first]


def test_a_leader_that_is_lost_when_all_others_have_ended_leaves_its_last_work_to_a_restart():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.report(second, WorkerPhase.FINISHED, job.record.committed, 99)
    world.exit(second, 0)
    world.exit(first, -9)
    world.pass_time(2)
    assert job.record.restarts == 1
    assert world.roster(job.id)


def test_a_job_that_is_preempted_in_the_moment_of_its_end_has_finished():
    world = World({"s1": 2})
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    committed = job.record.committed
    job.update(target=())
    suspend(world.machine.cluster, world.now, job)
    world.report(second, WorkerPhase.FINISHED, committed, 99)
    world.exit(second, 0)
    assert job.record.phase is JobPhase.PENDING
    world.report(first, WorkerPhase.FINISHED, committed, 99)
    world.restart()
    world.exit(first, 0)
    assert world.job(job.id).record.phase is JobPhase.FINISHED
    assert world.running(job.id) == []


def test_cancelling_stops_all_workers_and_frees_their_gpus_as_they_end():
    world = World({"s1": 2})
    job = one_running(world, 2)
    waiting = world.submit(job_spec("other", 2, 2))
    assert waiting.record.phase is JobPhase.PENDING
    first, second = world.roster(job.id)
    assert world.ask(Cancel(job=job.id)) == Cancelled(job=job.id)
    assert job.record.phase is JobPhase.CANCELLED
    assert {stop.worker for stop in world.messages(StopWorker)} == {first, second}
    assert world.running(waiting.id) == []
    world.exit(first, -15)
    world.exit(second, -15)
    assert len(world.running(waiting.id)) == 2
    assert EventKind.LOST not in world.kinds(job.id)


def test_a_preempted_job_saves_its_state_and_is_not_started_again_before_that_is_done():
    world = World({"s1": 1})
    job = one_running(world, 1)
    (first,) = world.roster(job.id)
    target = job.record.target
    job.update(target=())
    suspend(world.machine.cluster, world.now, job)
    world.turn()
    asked = [
        StopWorker(
            job=job.id,
            worker=first,
            grace_s=30.0,
            save=True,
            saver=first,
            stand_by=True,
            uid=job.uid,
        )
    ]
    assert world.messages(StopWorker) == asked
    job.update(target=target)
    world.machine.cluster.jobs.mark_dirty(job)
    world.turn()
    world.hello("s1")
    assert [(stop.grace_s, stop.save) for stop in world.messages(StopWorker)] == [(30.0, True)] * 2, "it still saves"
    assert not world.roster(job.id), "it would begin with an older checkpoint"
    world.exit(first, 0)
    assert len(world.roster(job.id)) == 1
    assert EventKind.RESTARTED not in world.kinds(job.id)


def test_where_the_leader_is_lost_another_one_with_the_state_saves_it():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec("digits", 2, 2))
    world.settle(job.id)
    leader = job.newest.roster.leader
    (other,) = [worker for worker in world.roster(job.id) if worker != leader]
    world.exit(leader, -9, turn=False)
    job.update(target=())
    suspend(world.machine.cluster, world.now, job)
    world.turn()
    assert [(stop.worker, stop.saver) for stop in world.messages(StopWorker) if stop.save] == [(other, other)]


def test_a_preempted_job_that_is_cancelled_does_not_save():
    world = World({"s1": 1})
    job = one_running(world, 1)
    (first,) = world.roster(job.id)
    job.update(target=())
    suspend(world.machine.cluster, world.now, job)
    world.ask(Cancel(job=job.id))
    assert [(stop.worker, stop.save) for stop in world.messages(StopWorker)] == [(first, True), (first, False)]


def test_a_pending_job_is_cancelled_at_once():
    world = World({"s1": 1}, policy="fifo")
    world.submit(job_spec(low=1, high=1))
    job = world.submit(job_spec(low=1, high=1))
    assert job.waiting_reason
    assert world.ask(Cancel(job=job.id)) == Cancelled(job=job.id)
    assert job.record.phase is JobPhase.CANCELLED


def test_ends_are_recorded_before_they_are_forgotten():
    world = World()
    job = one_running(world, 2)
    worker = world.roster(job.id)[1]
    world.exit(worker, -9)
    assert ForgetWorkers(workers=(worker,), uids={worker: job.uid}) in world.messages(ForgetWorkers)
    world.restart()
    assert worker in [entry.worker for entry in world.job(job.id).record.past]


def test_a_job_that_fails_says_after_which_step_in_which_attempt_with_which_error_and_where_its_log_is():
    world = World()
    job = one_running(world, 1)
    world.report(f"{job.id}.0", WorkerPhase.TRAINING, job.record.committed, 12, batch_samples=256)
    assert world.ask(GetJob(job=job.id)).job.batch_samples == 256
    world.exit(f"{job.id}.0", 1, "exit code 1: ValueError: the loss is nan")
    world.pass_time(5)
    assert world.ask(GetJob(job=job.id)).job.failure is None
    (second,) = world.roster(job.id)
    world.report(second, WorkerPhase.STARTING)
    world.exit(second, 1, "exit code 1: ValueError: the loss is nan")
    world.pass_time(30)
    while not job.final:
        (last,) = world.roster(job.id)
        world.exit(last, 1, "exit code 1: ValueError: the loss is nan")
        world.pass_time(30)
    found = world.ask(GetJob(job=job.id)).job
    assert found.failure is not None
    assert found.failure.steps_done == 13
    assert found.failure.attempt == job.record.restarts + 1 > 1
    assert found.failure.error == "exit code 1: ValueError: the loss is nan"
    assert found.failure.log == f"/state/jobs/{job.id}/{found.failure.worker}.log"
    world.restart()
    assert world.ask(GetJob(job=job.id)).job.failure == found.failure


def test_a_job_that_never_trained_says_so():
    world = World({"s1": 1})
    job = world.submit(job_spec("digits", 1, 1))
    (first,) = world.roster(job.id)
    world.exit(first, 2, "exit code 2: SyntaxError: invalid syntax")
    found = world.ask(GetJob(job=job.id)).job
    assert found.failure is not None
    assert (found.failure.steps_done, found.failure.attempt, found.failure.worker) == (0, 1, first)


def test_a_path_of_a_log_that_is_no_path_is_not_kept():
    world = World({"s1": 1})
    job = world.submit(job_spec("digits", 1, 1))
    (first,) = world.roster(job.id)
    world.exit(first, 2, log="x" * 5000)
    assert world.ask(GetJob(job=job.id)).job.failure.log == ""
