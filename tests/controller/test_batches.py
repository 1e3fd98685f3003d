"""Hybrid scaling in the controller: when it asks for a larger batch, and the history that it keeps (Elan III)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from elasticd.protocol.messages import EventKind, GetJob, Order, Scale
from elasticd.protocol.model import BatchChange, Scaling, Steady, WorkerPhase
from elasticd.scheduler.measuring import Measuring

from .world import World, job_spec

FLAT = {1: 10.0, 2: 19.0, 3: 19.0, 4: 19.0}  # steps per second: two GPUs are the optimum
LINEAR = {share: 10.0 * share for share in range(1, 5)}


def hybrid_spec(**fields: Any) -> Any:
    return replace(job_spec(high=4), scaling=Scaling(hybrid=True), **fields)


def train(
    world: Any, job: Any, rates: dict[int, float], step: int, changes: tuple[Any, ...] = (), ceiling: int = 8
) -> int:
    """The newest order is committed, and trains for long enough to be measured. Returns the last step."""
    if job.newest.generation != job.record.committed or not changes:
        world.settle(job.id, step)
    step += 64
    share = len(job.newest.roster.members)
    steady = Steady(generation=job.record.committed, step_s=1 / rates[share], steps=32)
    for worker in world.roster(job.id):
        world.report(
            worker,
            WorkerPhase.TRAINING,
            job.record.committed,
            step,
            steady=steady,
            batch_changes=changes,
            batch_ceiling=ceiling,
        )
    return step


def grown(rates: dict[int, float], **named: Any) -> tuple[Any, Any, int]:
    """A job on two GPUs that are measured gets four, which are measured, too."""
    world = World({"s1": 4}, measuring=Measuring())
    job = world.submit(hybrid_spec())
    world.ask(Scale(job=job.id, share=1))
    step = train(world, job, rates, 10, **named)
    world.ask(Scale(job=job.id, share=2))
    step = train(world, job, rates, step, **named)
    assert job.record.batch_factor == 0, "two GPUs are within strong scaling"
    world.ask(Scale(job=job.id, share=4))
    return world, job, train(world, job, rates, step, **named)


def factor_ordered(world: Any) -> int:
    return int(world.messages(Order)[-1].batch_factor)


def test_a_job_that_outgrows_its_batch_is_asked_for_a_larger_one() -> None:
    world, job, _ = grown(FLAT)
    assert job.record.batch_factor == 2
    assert factor_ordered(world) == 2


def test_strong_scaling_comes_first() -> None:
    world, job, _ = grown(LINEAR)
    assert job.record.batch_factor == 0
    assert factor_ordered(world) == 0


def test_a_job_without_hybrid_scaling_is_never_asked() -> None:
    world, job, _ = grown(FLAT, ceiling=0)
    assert (job.record.batch_factor, job.record.batch_share, factor_ordered(world)) == (0, 0, 0)


def test_the_history_is_recorded_told_and_survives_the_controller() -> None:
    world, job, step = grown(FLAT)
    change = BatchChange(step=step + 3, factor=2, rate=2.0, ramp=100)
    before = {entry.share: entry.steps_per_s for entry in job.record.measured}
    step = train(world, job, {4: 15.0}, step, changes=(change,))
    assert job.record.batch_changes == (change,)
    (event,) = [each for each in world.machine.cluster.history.events if each.kind is EventKind.BATCH]
    assert event.text == f"step {change.step}: factor 2 of the batch, learning rate times 2 after 100 steps"
    after = {entry.share: entry.steps_per_s for entry in job.record.measured}
    assert all(after[share] < before[share] for share in (1, 2)), "a step is longer now, for fewer GPUs, too"
    world.restart()
    again = world.job(job.id)
    assert again.record.batch_changes == (change,)
    assert world.ask(GetJob(job=job.id)).job.batch_changes == (change,)
    assert factor_ordered(world) == 2


def test_fewer_gpus_and_as_many_again_change_nothing() -> None:
    world, job, step = grown(FLAT)
    changes = (BatchChange(step=step + 3, factor=2, rate=2.0, ramp=100),)
    for share in (2, 4, 1, 4):
        world.ask(Scale(job=job.id, share=share))
        step = train(world, job, {1: 5.0, 2: 10.0, 4: 10.0}, step, changes=changes)
        assert job.record.batch_factor == 2


def test_a_state_without_the_last_changes_replaces_the_history() -> None:
    world, job, step = grown(FLAT)
    first, second = (BatchChange(step=step + n, factor=2 * n, rate=2.0, ramp=100) for n in (1, 2))
    step = train(world, job, {4: 15.0}, step, changes=(first, second))
    step = train(world, job, {4: 15.0}, step, changes=(first,))
    assert job.record.batch_changes == (first,)
    told = [each.text for each in world.machine.cluster.history.events if each.kind is EventKind.BATCH]
    assert told[-1].startswith("the batch's history is that of the state with which the job goes on: step ")


def test_an_impossible_history_is_dropped() -> None:
    world, job, step = grown(LINEAR)
    train(world, job, LINEAR, step, changes=(BatchChange(step=1, factor=0, rate=2.0, ramp=0),))
    assert job.record.batch_changes == ()
    assert EventKind.ODD_FIGURE in world.kinds(job.id)
