"""Lengths of jobs: reports of jobs, estimates from finished jobs, and the views of both."""

from __future__ import annotations

import numpy as np
import pytest

from elasticd.controller.jobs.lengths import KEY, LengthsRecord, record, recovered
from elasticd.controller.reconcile.snapshot import snapshot
from elasticd.controller.recovery import differences
from elasticd.protocol.messages import Cancel, GetJob, LengthSource
from elasticd.protocol.model import JobPhase, WorkerPhase
from elasticd.scheduler.length_statistics import AS_TOLD, NOTHING_ENDED
from elasticd.scheduler.view import UNKNOWN_S

from .world import World, job_spec

ALONE = {1: 10.0}  # steps per second


def train(world, job, step: int, total_steps: int | None = None) -> None:
    """The job reports this step, with its present GPUs."""
    world.settle(job.id, max(0, step))
    for worker in world.roster(job.id):
        world.report(worker, WorkerPhase.TRAINING, job.record.committed, step, total_steps=total_steps)


def end(world, job) -> None:
    """The job's script ends."""
    for worker in world.roster(job.id):
        world.report(worker, WorkerPhase.FINISHED, job.record.committed, job.progress().step)
        world.exit(worker, 0)
    assert job.record.phase is JobPhase.FINISHED


def seen(world):
    return snapshot(world.machine.cluster, world.now).view.jobs


def length(world, job):
    return world.ask(GetJob(job=job.id)).job.length


def test_the_view_has_what_a_job_tells_and_what_it_has_done_in_seconds_on_one_gpu() -> None:
    world = World({"s1": 3})
    told = world.submit(job_spec("told", 1, 1, max_steps=1000, throughput=ALONE))
    untold = world.submit(job_spec("untold", 1, 1, throughput=ALONE))
    train(world, told, 199)
    train(world, untold, 99)
    jobs = seen(world)
    assert jobs.told_s[0] == pytest.approx(100.0)
    assert (jobs.done_s.tolist(), jobs.left_s.tolist()) == ([20.0, 10.0], [80.0, UNKNOWN_S])
    assert np.isnan(jobs.told_s[1])


def test_a_loop_over_epochs_tells_too() -> None:
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1, throughput=ALONE))
    assert length(world, job).source is LengthSource.UNKNOWN
    train(world, job, 9, total_steps=500)
    assert seen(world).told_s.tolist() == [50.0]
    assert (length(world, job).source, length(world, job).steps) == (LengthSource.EPOCHS, 500.0)


def test_what_ends_early_is_learned_and_told() -> None:
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1, max_steps=1000, throughput=ALONE))
    train(world, job, 249, total_steps=1000)
    end(world, job)
    view = world.ask(GetJob(job=job.id)).job
    assert (view.length.source, view.length.steps, view.step) == (LengthSource.MAX_STEPS, 1000.0, 249)
    ended = world.machine.cluster.experience.lengths
    assert (ended.lengths.sum(), ended.errors.sum(), ended.errors[AS_TOLD]) == (1, 1, 0)


def test_what_jobs_that_are_over_have_taken_is_an_estimate_for_others() -> None:
    world = World({"s1": 1})
    for _ in range(30):
        job = world.submit(job_spec(low=1, high=1, throughput=ALONE))
        train(world, job, 9_999)
        end(world, job)
    job = world.submit(job_spec(low=1, high=1, throughput=ALONE))
    told = length(world, job)
    assert told.source is LengthSource.ENDED_JOBS
    assert told.least_steps <= told.steps <= told.most_steps
    assert 5_000 < told.steps < 20_000


def test_a_job_that_has_done_nothing_teaches_nothing() -> None:
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1, throughput=ALONE))
    world.ask(Cancel(job=job.id))
    assert world.machine.cluster.experience.lengths is NOTHING_ENDED
    assert KEY not in world.store


def test_another_controller_goes_on_with_what_was_learned_and_counts_nobody_twice() -> None:
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1, max_steps=100, throughput=ALONE))
    train(world, job, 99)
    end(world, job)
    before = world.machine.cluster
    world.restart()
    after = world.machine.cluster
    assert record(after.experience.lengths) == record(before.experience.lengths)
    assert after.experience.lengths.errors[AS_TOLD] == after.experience.lengths.lengths.sum() == 1
    assert not [one for one in differences(before, after) if KEY in one]


@pytest.mark.parametrize(
    "kept", [LengthsRecord(lengths=((1,),), errors=(2,)), LengthsRecord(lengths=(), errors=()), None]
)
def test_a_record_with_other_bins_or_absurd_counts_is_begun_anew(kept: LengthsRecord | None) -> None:
    if kept is None:
        whole = record(NOTHING_ENDED)
        kept = LengthsRecord(lengths=whole.lengths, errors=(-1, *whole.errors[1:]))
    assert recovered(kept) is NOTHING_ENDED
