"""Jobs that may run for a limited time: what counts, the warning, the saved state, and the end."""

from __future__ import annotations

from typing import Any

from elasticd.protocol.messages import Cancel, EventKind, GetJob, Pause, Resume, StopWorker, Submit, WarnWorker
from elasticd.protocol.model import JobPhase, WorkerPhase

from .world import World, job_spec, one_running


def saves(world: Any, job: Any, step: int) -> None:
    for worker in world.running(job.id):
        status = world.find(worker)[1].status
        world.report(worker, WorkerPhase.TRAINING, status.generation, step, saved=step)
    world.reap()


def view(world: Any, job: Any) -> Any:
    return world.ask(GetJob(job=job.id)).job


def test_a_job_whose_time_is_up_saves_its_state_and_has_failed():
    world = World({"s1": 2})
    job = one_running(world, gpus=2, time_limit_s=100.0)
    world.pass_time(98)
    assert not world.messages(StopWorker)
    world.pass_time(3)
    assert [stop.save for stop in world.messages(StopWorker)] == [True, True]
    assert "is being ended at its time limit" in view(world, job).reason
    assert EventKind.TIMED_OUT in world.kinds(job.id)
    saves(world, job, 10)
    shown = view(world, job)
    assert (shown.phase, shown.saved_step) == (JobPhase.FAILED, 10)
    assert shown.reason == "it has run for 1m40s, its time limit, after 11 steps, its state is saved"
    assert 100 <= shown.ran_s < 103


def test_time_counts_over_preemptions_and_restarts_of_the_controller_and_not_while_a_job_waits():
    world = World({"s1": 2})
    job = one_running(world, gpus=2, time_limit_s=100.0)
    world.pass_time(60)
    world.ask(Pause(job=job.id))
    saves(world, job, 10)
    world.pass_time(500)
    assert 59 < view(world, job).ran_s < 62
    world.restart()
    world.ask(Resume(job=job.id))
    world.settle(job.id, step=11)
    world.sent.clear()
    world.pass_time(35)
    assert not world.messages(StopWorker)
    world.restart()
    world.pass_time(10)
    assert [stop.save for stop in world.messages(StopWorker)] == [True, True]


def test_a_command_whose_time_is_up_is_stopped_after_a_warning():
    world = World({"s1": 2})
    job = world.submit(job_spec("eval", 1, 1, restarts=0, time_limit_s=100.0, warn_s=30.0))
    world.pass_time(68)
    assert not world.messages(WarnWorker)
    world.pass_time(5)
    (warning,) = world.messages(WarnWorker)
    assert (warning.worker, warning.uid) == ("eval-1.0", job.uid)
    world.restart()
    world.pass_time(20)
    assert len(world.messages(WarnWorker)) == 1, "once"
    world.pass_time(12)
    shown = view(world, job)
    assert (shown.phase, shown.reason) == (JobPhase.FAILED, "it has run for 1m40s, its time limit")
    (stop,) = world.messages(StopWorker)
    assert not stop.save
    assert {EventKind.WARNED, EventKind.FAILED} <= set(world.kinds(job.id))


def test_a_job_that_is_cancelled_at_its_limit_is_cancelled():
    world = World({"s1": 2})
    job = one_running(world, gpus=2, time_limit_s=100.0)
    world.pass_time(98)
    world.ask(Cancel(job=job.id, save=True))
    world.pass_time(4)
    saves(world, job, 10)
    assert view(world, job).phase is JobPhase.CANCELLED


def test_a_warning_without_a_limit_is_refused():
    answer = World({"s1": 1}).ask(Submit(spec=job_spec("eval", 1, 1, warn_s=30.0)))
    assert answer.reason.startswith("warn: goes with time")


def test_a_warning_before_the_job_begins_is_refused():
    world = World({"s1": 1})
    told = world.ask(Submit(spec=job_spec("eval", 1, 1, restarts=0, time_limit_s=60.0, warn_s=60.0))).reason
    assert "warn: 1m00s before the end is not within the 1m00s of time" in told
