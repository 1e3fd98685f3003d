"""Lost workers, and restarts of jobs."""

from __future__ import annotations

from elasticd.protocol.messages import (
    EventKind,
    Order,
    Scale,
    StopWorker,
)
from elasticd.protocol.model import JobPhase, WorkerPhase

from .world import World, job_spec, one_running

T, B = WorkerPhase.TRAINING, WorkerPhase.BROKEN


def test_survivors_go_on_alone_first_and_grow_afterwards():
    world = World()
    job = one_running(world, 3)
    committed = job.record.committed
    first, second, third = world.roster(job.id)
    world.exit(second, -9)
    assert world.roster(job.id) == [first, third]
    assert committed in world.messages(Order)[-1].broken
    world.report(first, B, committed, 10)
    world.report(third, B, committed, 10)
    assert world.roster(job.id) == [first, third]
    world.commit(job.id, 11)
    roster = world.roster(job.id)
    assert roster[:2] == [first, third]
    assert len(roster) == 3
    assert second not in roster
    assert job.record.restarts == 0


def test_a_lost_leader_is_followed_by_the_holder_that_is_furthest_ahead():
    world = World()
    job = one_running(world, 3)
    first, second, third = world.roster(job.id)
    world.report(second, B, job.record.committed, 10)
    world.report(third, B, job.record.committed, 11)
    world.exit(first, -9)
    assert job.newest.roster.leader == third


def test_a_loss_while_an_order_is_on_its_way_breaks_both_generations():
    world = World()
    job = one_running(world, 2)
    committed = job.record.committed
    first, second = world.roster(job.id)
    world.ask(Scale(job=job.id, share=3))
    ordered = job.record.generation
    world.exit(second, -9)
    assert set(world.messages(Order)[-1].broken) >= {committed, ordered}
    assert world.roster(job.id) == [first]
    world.commit(job.id, 12)
    assert len(world.roster(job.id)) == 3  # the starting newcomer was kept, the lost one replaced


def test_a_worker_that_says_its_communicator_failed_is_ordered_anew():
    world = World()
    job = one_running(world, 2)
    committed, roster = job.record.committed, world.roster(job.id)
    world.report(roster[1], B, committed, 10)
    order = world.messages(Order)[-1]
    assert order.generation > committed
    assert committed in order.broken
    assert list(order.roster.workers) == roster
    count = job.record.generation
    world.report(roster[0], B, committed, 10)
    world.report(roster[1], B, committed, 10)
    assert job.record.generation == count


def test_a_leaver_that_was_ordered_back_too_late_is_replaced():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.ask(Scale(job=job.id, share=1))
    shrunk = job.record.generation
    world.ask(Scale(job=job.id, share=2))
    assert world.roster(job.id) == [first, second]
    world.report(first, T, shrunk, 12)
    world.report(second, WorkerPhase.LEFT, 1, 12)
    world.exit(second, 0)
    world.settle(job.id)
    assert job.share_gpus == 2
    assert second not in world.roster(job.id)
    assert EventKind.LOST not in world.kinds(job.id)


def test_a_job_without_survivors_starts_again_from_its_checkpoint_after_a_back_off():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.exit(first, -9, turn=False)
    world.exit(second, -9)
    assert world.running(job.id) == []
    world.pass_time(1.5)
    assert len(world.running(job.id)) == 2
    assert job.record.restarts == 1
    world.settle(job.id)
    assert job.record.phase is JobPhase.RUNNING


def test_a_job_that_begins_again_with_its_joiner_is_said_to_train_again():
    world = World()
    job = one_running(world)
    (source,) = world.roster(job.id)
    world.ask(Scale(job=job.id, share=2))
    world.arrive(job.id)
    for worker in world.roster(job.id):
        world.report(worker, WorkerPhase.TRAINING, job.newest.generation, 10 if worker == source else None)
    (joiner,) = (worker for worker in world.roster(job.id) if worker != source)
    world.exit(source, -9)
    assert joiner in world.roster(job.id)
    assert world.kinds(job.id)[-2:] == [EventKind.RESTARTED, EventKind.ORDERED]
    world.settle(job.id)
    assert world.kinds(job.id).count(EventKind.STARTED) == 2
    assert job.share_gpus == 2


def test_a_job_that_gets_no_further_is_given_up():
    world = World(max_restarts=2)
    job = one_running(world)
    for _ in range(4):
        if job.final:
            break
        world.exit(world.roster(job.id)[0], -9)
        world.pass_time(40)
        world.settle(job.id)
    assert job.record.phase is JobPhase.FAILED
    assert "killed 3 times in a row and it got no further" in job.record.reason


def test_three_newcomers_in_a_row_that_end_at_their_start_hold_growth_back():
    world = World()
    job = one_running(world)
    world.ask(Scale(job=job.id, share=2))
    for _ in range(3):
        newcomer = [worker for worker in world.running(job.id) if worker != f"{job.id}.0"]
        world.exit(newcomer[0], 1, "exit code 1: ImportError: no")
        world.commit(job.id)
    assert EventKind.HELD in world.kinds(job.id)
    assert world.running(job.id) == [f"{job.id}.0"]
    assert job.record.phase is JobPhase.RUNNING
    world.pass_time(31)
    assert len(world.running(job.id)) == 2


def test_an_error_of_the_script_before_any_progress_fails_the_job_at_once():
    world = World()
    job = world.submit(job_spec(low=2, high=2))
    world.exit(f"{job.id}.1", 3, "exit code 3: ValueError: bad")
    assert job.record.phase is JobPhase.FAILED
    assert (job.record.exit_code, job.record.reason) == (3, f"{job.id}.1 on s1:1: exit code 3: ValueError: bad")
    assert [stop.worker for stop in world.messages(StopWorker)] == [f"{job.id}.0"]


def test_an_error_of_the_script_that_comes_back_fails_the_job():
    world = World()
    job = one_running(world)
    world.exit(world.roster(job.id)[0], 1, "exit code 1: ZeroDivisionError")
    world.pass_time(2)
    world.settle(job.id, 10)
    world.exit(world.roster(job.id)[0], 1, "exit code 1: ZeroDivisionError")
    world.pass_time(3)
    if not job.final:  # the first failure came after progress, so a second one without progress is needed
        world.settle(job.id, 10)
        world.exit(world.roster(job.id)[0], 1, "exit code 1: ZeroDivisionError")
    assert job.record.phase is JobPhase.FAILED
    assert job.record.exit_code == 1
    assert "ZeroDivisionError" in job.record.reason


def test_a_worker_that_ends_quietly_in_the_middle_of_training_is_a_loss():
    world = World()
    job = one_running(world, 2)
    world.exit(world.roster(job.id)[1], 0)
    assert not job.final
    assert job.record.past[-1].reason == "ended in the middle of training (exit code 0)"


def test_a_job_that_loses_a_worker_in_each_generation_and_comes_no_further_is_given_up():
    world = World({"s1": 2}, max_restarts=3)
    job = world.submit(job_spec(low=1, high=2))
    for _ in range(6):  # the first of them come further
        if not job.final:
            world.settle(job.id, step=20)
            world.exit(world.roster(job.id)[1], 1)
        if not job.final:
            world.commit(job.id, step=20)
            world.pass_time(100.0)  # its growth is delayed for a while
    assert job.record.phase is JobPhase.FAILED
    assert "4 generations in a row" in job.record.reason


def test_a_job_that_comes_further_between_its_losses_goes_on():
    world = World({"s1": 2}, max_restarts=3)
    job = world.submit(job_spec(low=1, high=2))
    for turn in range(8):
        world.settle(job.id, step=10 + 4 * turn)
        world.commit(job.id, step=12 + 4 * turn)
        world.exit(world.roster(job.id)[1], 1)
        world.commit(job.id, step=13 + 4 * turn)
    assert not job.final
