"""Orders and commits: how a job starts, grows, shrinks and moves."""

from __future__ import annotations

from elasticd.controller.jobs.generations import GiveOrder, next_step
from elasticd.controller.jobs.records import OrderKind, WorkerState
from elasticd.protocol.messages import (
    EventKind,
    Order,
    Scale,
    Scaled,
    StartWorker,
    StopWorker,
)
from elasticd.protocol.model import GpuAddress, JobPhase, Resize, ServerId, WorkerPhase
from elasticd.protocol.times import RESEND_AFTER_S

from .world import World, job_spec, one_running

T = WorkerPhase.TRAINING


def test_a_submitted_job_is_recorded_ordered_and_started():
    world = World()
    job = world.submit(job_spec(low=2, high=2))
    assert job.id == "digits-1"
    assert job.record.phase is JobPhase.STARTING
    assert world.roster(job.id) == ["digits-1.0", "digits-1.1"]
    assert [start.worker for start in world.messages(StartWorker)] == ["digits-1.0", "digits-1.1"]
    assert job.newest.roster.leader == "digits-1.0"
    assert world.messages(Order)[0].leader_address == ""


def test_an_order_is_repeated_as_soon_as_the_leaders_address_is_known():
    world = World()
    job = world.submit(job_spec(low=2, high=2))
    world.report(f"{job.id}.0", WorkerPhase.STARTING)
    assert world.messages(Order)[-1].leader_address == "tcp://127.0.0.1:5000"
    count = len(world.messages(Order))
    world.report(f"{job.id}.0", WorkerPhase.READY)
    assert len(world.messages(Order)) == count


def test_the_first_commit_makes_a_job_run():
    world = World()
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id)
    assert (job.record.phase, job.share_gpus, job.record.committed) == (JobPhase.RUNNING, 2, 1)
    assert [change.share for change in job.record.shares] == [2]
    assert world.kinds(job.id) == [EventKind.SUBMITTED, EventKind.ORDERED, EventKind.STARTED]


def test_growing_keeps_workers_and_leader_and_waits_for_nobody():
    world = World()
    job = one_running(world)
    answer = world.ask(Scale(job=job.id, share=3))
    assert answer == Scaled(job=job.id, generation=job.record.generation, share=3)
    assert world.roster(job.id)[0] == f"{job.id}.0"
    assert job.newest.roster.leader == f"{job.id}.0"
    assert job.share_gpus == 1  # until it is committed
    world.settle(job.id)
    assert job.share_gpus == 3


def test_leavers_end_by_themselves_and_are_not_lost():
    world = World()
    job = one_running(world, 3)
    leavers = set(world.roster(job.id)[1:])
    world.ask(Scale(job=job.id, share=1))
    world.settle(job.id)
    assert job.share_gpus == 1
    assert world.messages(StopWorker) == []
    assert EventKind.LOST not in world.kinds(job.id)
    assert leavers <= {entry.worker for entry in job.record.past}


def test_a_measured_resize_is_told_in_words():
    world = World()
    job = one_running(world)
    world.ask(Scale(job=job.id, share=3))
    world.arrive(job.id)
    resize = Resize(
        generation=job.record.generation,
        step=812,
        workers_before=1,
        workers_after=3,
        longest_gap_s=0.041,
        median_step_s=0.02,
        median_step_after_s=0.01,
    )
    world.report(f"{job.id}.0", T, job.record.generation, 815, resizes=(resize,))
    world.report(f"{job.id}.0", T, job.record.generation, 816, resizes=(resize,))
    texts = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.RESIZED]
    assert texts == ["1 -> 3 GPUs at step 812, longest gap 41 ms (median step 20 ms, then 10 ms)"]


def test_a_newcomer_of_an_overtaken_order_is_stopped_only_when_that_order_cannot_be_committed_any_more():
    world = World()
    job = one_running(world)
    world.ask(Scale(job=job.id, share=2))
    overtaken = job.record.generation
    world.arrive(job.id)
    leader = f"{job.id}.0"
    world.report(leader, T, job.record.committed, 11, floor=overtaken)
    world.ask(Scale(job=job.id, share=1))
    assert world.messages(StopWorker) == []
    world.report(leader, T, job.record.committed, 12, floor=job.record.generation)
    assert [stop.worker for stop in world.messages(StopWorker)] == [tuple(job.workers)[1].worker]


def test_two_jobs_that_pass_gpus_to_each_other_do_not_wait_for_each_other():
    world = World({"s1": 4})
    first, second = one_running(world, 2), one_running(world, 2, name="other")
    places = [[member.gpu for member in job.newest.roster.members] for job in (first, second)]
    first.update(target=(places[0][0], places[1][1]))
    second.update(target=(places[1][0], places[0][1]))
    world.machine.cluster.jobs.mark_dirty(first)
    world.machine.cluster.jobs.mark_dirty(second)
    world.turn()
    for _ in range(3):
        world.settle(first.id)
        world.settle(second.id)
    assert {member.gpu for member in first.newest.roster.members} == set(first.record.target)
    assert (first.share_gpus, second.share_gpus) == (2, 2)
    assert first.record.restarts == second.record.restarts == 0


def test_a_newcomer_that_is_still_wanted_keeps_what_it_has_prepared():
    world = World()
    job = one_running(world)
    world.ask(Scale(job=job.id, share=2))
    newcomer = world.roster(job.id)[1]
    world.ask(Scale(job=job.id, share=3))
    assert world.roster(job.id)[:2] == [f"{job.id}.0", newcomer]


def test_a_worker_starts_only_when_its_gpu_is_free():
    world = World({"s1": 2})
    first = one_running(world, 2)
    second = world.submit(job_spec("other", 1, 1))
    world.ask(Scale(job=first.id, share=1))
    place = second.newest.roster.members[0].gpu
    assert [start for start in world.messages(StartWorker) if start.job == second.id] == []
    world.settle(first.id)
    assert [start.gpu for start in world.messages(StartWorker) if start.job == second.id] == [place.index]


def test_a_migration_goes_through_the_union_of_old_and_new():
    world = World({"s1": 1, "s2": 1})
    job = one_running(world)
    old = world.roster(job.id)
    job.update(target=(GpuAddress(server=ServerId("s2"), index=0),))
    world.machine.cluster.jobs.mark_dirty(job)
    world.turn()
    union = world.roster(job.id)
    assert union[: len(old)] == old
    assert len(union) == 2
    world.arrive(job.id)
    generation = job.record.generation
    world.report(old[0], T, generation, 20)
    assert world.roster(job.id) == union  # the newcomer does not have the state yet
    world.report(union[1], T, generation, None)
    assert world.roster(job.id) == union
    world.report(union[1], T, generation, 21)
    world.report(union[1], T, generation, 22)
    assert world.roster(job.id) == union  # no worker has verified a step of the newcomer's
    world.report(union[1], T, generation, 23)
    assert world.roster(job.id) == [union[1]]
    assert job.newest.roster.leader == union[1]
    world.settle(job.id)
    assert world.running(job.id) == [union[1]]


def test_a_start_that_no_agent_has_heard_is_told_again():
    world = World({"s1": 1})
    job = world.submit(job_spec(low=1, high=1))
    (worker,) = world.running(job.id)
    del world.agents["s1"].running[worker]  # the message was lost
    world.agents["s1"].seen.discard(worker)
    world.sent.clear()
    world.pass_time(RESEND_AFTER_S - 1)
    assert world.messages(StartWorker) == []
    world.pass_time(2)
    assert [start.worker for start in world.messages(StartWorker)] == [worker]
    world.pass_time(3 * RESEND_AFTER_S)
    assert len(world.messages(StartWorker)) == 1  # the agent reports now that it starts the worker


def test_an_order_that_no_worker_has_heard_is_told_again():
    world = World({"s1": 2})
    job = world.submit(job_spec(low=2, high=2))
    for process in world.agents["s1"].running.values():
        process.order = None  # the message was lost
    for worker in world.running(job.id):
        world.report(worker, WorkerPhase.READY)
    world.sent.clear()
    world.pass_time(RESEND_AFTER_S + 2)
    assert world.messages(Order)[-1].roster.generation == job.record.generation


def test_an_order_whose_leader_a_ready_worker_does_not_find_is_told_again():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec(low=2, high=2))
    leader, follower = world.roster(job.id)
    world.report(leader, WorkerPhase.READY, unheard=[follower])
    world.report(follower, WorkerPhase.READY, unheard=[leader])
    world.pass_time(1)
    world.sent.clear()  # the order with the leader's address was lost
    world.pass_time(RESEND_AFTER_S - 2)
    assert world.messages(Order) == []
    world.pass_time(2)
    (again,) = world.messages(Order)
    assert again.leader_address, "it has heard of the order, and not of where its leader is"


def test_a_restarted_controller_repeats_its_order_to_workers_that_do_not_follow_it_and_to_no_others():
    world = World({"s1": 2})
    follows, waits = (world.submit(job_spec(name, low=1, high=1)) for name in ("follows", "waits"))
    world.settle(follows.id)
    (worker,) = world.running(waits.id)
    world.report(worker, WorkerPhase.READY)
    world.sent.clear()
    world.restart()
    assert {order.job for order in world.messages(Order)} == {waits.id}


def test_a_job_that_shrinks_before_it_has_begun_is_ordered_once_while_the_other_worker_still_ends():
    world = World()
    job = world.submit(job_spec(low=1, high=3))
    world.turn()
    world.ask(Scale(job=job.id, share=2))
    world.arrive(job.id)
    ordered = job.record.generation
    first, second = world.roster(job.id)
    assert len(world.running(job.id)) == 3
    for worker in (first, second, first):
        world.report(worker, WorkerPhase.READY)
    world.pass_time(5)
    assert (job.record.generation, world.roster(job.id)) == (ordered, [first, second])
    assert next_step(job, lambda gpu: True, ()) is None


def test_a_job_whose_next_gpus_are_all_occupied_is_ordered_nothing_until_one_is_free():
    world = World({"s1": 2, "s2": 1})
    job = one_running(world, 1)
    world.ask(Scale(job=job.id, share=2))
    (first, _) = world.roster(job.id)
    elsewhere = GpuAddress(server=ServerId("s2"), index=0)
    job.set_target(world.now, (elsewhere,), "it moves")
    assert next_step(job, lambda gpu: False, ()) is None
    step = next_step(job, lambda gpu: True, ())
    assert isinstance(step, GiveOrder)
    assert [(slot.worker, slot.gpu.server) for slot in step.slots] == [(first, "s1"), (None, "s2")]
    assert step.kind is OrderKind.UNION, "the state is handed on before it is left"


def test_a_worker_that_waits_for_its_gpu_keeps_no_start_behind_it_from_being_told_again():
    world = World({"s1": 2})
    job = world.submit(job_spec(low=2, high=2))
    first, second = world.running(job.id)
    world.agents["s1"].running.clear()  # both messages were lost
    world.agents["s1"].seen.clear()
    job.update_worker(first, state=WorkerState.ORDERED)
    world.sent.clear()
    world.hello("s1")
    assert second in [start.worker for start in world.messages(StartWorker)]
