"""The controller's rules, one by one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from elasticd.controller.reconcile import suspend
from elasticd.protocol.messages import (
    AgentHeartbeat,
    Cancel,
    Cancelled,
    ForgetWorkers,
    GetEvents,
    GetJob,
    GetLog,
    Log,
    LogPiece,
    Order,
    ReadLog,
    Refused,
    Scale,
    Scaled,
    StartWorker,
    StopWorker,
    Submit,
    Submitted,
)
from elasticd.protocol.model import GpuAddress, GpuRange, JobPhase, Resize, ServerId, WorkerId, WorkerPhase

_spec = importlib.util.spec_from_file_location("controller_world", Path(__file__).with_name("world.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules["controller_world"] = _module
_spec.loader.exec_module(_module)
World, job_spec = _module.World, _module.job_spec
T, B = WorkerPhase.TRAINING, WorkerPhase.BROKEN


def one_running(world, gpus: int = 1, step: int = 10, **changes):
    job = world.submit(job_spec(low=1, high=max(4, gpus), **changes))
    world.ask(Scale(job=job.id, share=gpus))
    world.settle(job.id, step)
    assert job.kept.phase is JobPhase.RUNNING
    assert len(world.roster(job.id)) == gpus
    world.reap()
    world.sent.clear()
    return job


# ------------------------------------------------------------------------------------------------- starting and committing


def test_a_submitted_job_is_recorded_ordered_and_started():
    world = World()
    job = world.submit(job_spec(low=2, high=2))
    assert job.id == "digits-1"
    assert job.kept.phase is JobPhase.STARTING
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
    assert (job.kept.phase, job.share_gpus, job.kept.committed) == (JobPhase.RUNNING, 2, 1)
    assert [change.share for change in job.kept.shares] == [2]
    assert world.kinds(job.id) == ["submitted", "ordered", "started"]


def test_growing_keeps_workers_and_leader_and_waits_for_nobody():
    world = World()
    job = one_running(world)
    answer = world.ask(Scale(job=job.id, share=3))
    assert answer == Scaled(job=job.id, generation=job.kept.generation, share=3)
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
    assert "lost" not in world.kinds(job.id)
    assert leavers <= {entry.worker for entry in job.kept.past}


def test_a_measured_resize_is_told_in_words():
    world = World()
    job = one_running(world)
    world.ask(Scale(job=job.id, share=3))
    world.arrive(job.id)
    resize = Resize(
        generation=job.kept.generation,
        step=812,
        workers_before=1,
        workers_after=3,
        longest_gap_s=0.041,
        median_step_s=0.02,
        median_step_after_s=0.01,
    )
    world.report(f"{job.id}.0", T, job.kept.generation, 815, resizes=(resize,))
    world.report(f"{job.id}.0", T, job.kept.generation, 816, resizes=(resize,))
    texts = [event.text for event in world.machine.cluster.events if event.kind == "resized"]
    assert texts == ["1 -> 3 GPUs at step 812, longest gap 41 ms (median step 20 ms, then 10 ms)"]


def test_a_newcomer_of_an_overtaken_order_is_stopped_only_when_that_order_cannot_be_committed_any_more():
    world = World()
    job = one_running(world)
    world.ask(Scale(job=job.id, share=2))
    overtaken = job.kept.generation
    world.arrive(job.id)
    leader = f"{job.id}.0"
    world.report(leader, T, job.kept.committed, 11, floor=overtaken)
    world.ask(Scale(job=job.id, share=1))
    assert world.messages(StopWorker) == []
    world.report(leader, T, job.kept.committed, 12, floor=job.kept.generation)
    assert [stop.worker for stop in world.messages(StopWorker)] == [job.kept.workers[1].worker]


def test_two_jobs_that_pass_gpus_to_each_other_do_not_wait_for_each_other():
    world = World({"s1": 4})
    first, second = one_running(world, 2), one_running(world, 2, name="other")
    places = [[member.gpu for member in job.newest.roster.members] for job in (first, second)]
    first.update(target=(places[0][0], places[1][1]))
    second.update(target=(places[1][0], places[0][1]))
    world.machine.cluster.stir(first)
    world.machine.cluster.stir(second)
    world.turn()
    for _ in range(3):
        world.settle(first.id)
        world.settle(second.id)
    assert {member.gpu for member in first.newest.roster.members} == set(first.kept.target)
    assert (first.share_gpus, second.share_gpus) == (2, 2)
    assert first.kept.restarts == second.kept.restarts == 0


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


# ------------------------------------------------------------------------------------------------------------- migration


def test_a_migration_goes_through_the_union_of_old_and_new():
    world = World({"s1": 1, "s2": 1})
    job = one_running(world)
    old = world.roster(job.id)
    job.update(target=(GpuAddress(server=ServerId("s2"), index=0),))
    world.machine.cluster.stir(job)
    world.turn()
    union = world.roster(job.id)
    assert union[: len(old)] == old
    assert len(union) == 2
    world.arrive(job.id)
    generation = job.kept.generation
    world.report(old[0], T, generation, 20)
    assert world.roster(job.id) == union  # the newcomer has not got the state yet
    world.report(union[1], T, generation, None)
    assert world.roster(job.id) == union
    world.report(union[1], T, generation, 21)
    assert world.roster(job.id) == [union[1]]
    assert job.newest.roster.leader == union[1]
    world.settle(job.id)
    assert world.running(job.id) == [union[1]]


# ----------------------------------------------------------------------------------------------------------------- losses


def test_survivors_go_on_alone_first_and_grow_afterwards():
    world = World()
    job = one_running(world, 3)
    committed = job.kept.committed
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
    assert job.kept.restarts == 0


def test_a_lost_leader_is_followed_by_the_holder_that_is_furthest_ahead():
    world = World()
    job = one_running(world, 3)
    first, second, third = world.roster(job.id)
    world.report(second, B, job.kept.committed, 10)
    world.report(third, B, job.kept.committed, 11)
    world.exit(first, -9)
    assert job.newest.roster.leader == third


def test_a_loss_while_an_order_is_on_its_way_breaks_both_generations():
    world = World()
    job = one_running(world, 2)
    committed = job.kept.committed
    first, second = world.roster(job.id)
    world.ask(Scale(job=job.id, share=3))
    ordered = job.kept.generation
    world.exit(second, -9)
    assert set(world.messages(Order)[-1].broken) >= {committed, ordered}
    assert world.roster(job.id) == [first]
    world.commit(job.id, 12)
    assert len(world.roster(job.id)) == 3  # the starting newcomer was kept, the lost one replaced


def test_a_worker_that_says_its_communicator_failed_is_ordered_anew():
    world = World()
    job = one_running(world, 2)
    committed, roster = job.kept.committed, world.roster(job.id)
    world.report(roster[1], B, committed, 10)
    order = world.messages(Order)[-1]
    assert order.generation > committed
    assert committed in order.broken
    assert list(order.roster.workers) == roster
    count = job.kept.generation
    world.report(roster[0], B, committed, 10)
    world.report(roster[1], B, committed, 10)
    assert job.kept.generation == count


def test_a_leaver_that_was_ordered_back_too_late_is_replaced():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.ask(Scale(job=job.id, share=1))
    shrunk = job.kept.generation
    world.ask(Scale(job=job.id, share=2))
    assert world.roster(job.id) == [first, second]
    world.report(first, T, shrunk, 12)
    world.report(second, WorkerPhase.LEFT, 1, 12)
    world.exit(second, 0)
    world.settle(job.id)
    assert job.share_gpus == 2
    assert second not in world.roster(job.id)
    assert "lost" not in world.kinds(job.id)


def test_a_job_without_survivors_starts_again_from_its_checkpoint_after_a_back_off():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.exit(first, -9, turn=False)
    world.exit(second, -9)
    assert world.running(job.id) == []
    world.pass_time(1.5)
    assert len(world.running(job.id)) == 2
    assert job.kept.restarts == 1
    world.settle(job.id)
    assert job.kept.phase is JobPhase.RUNNING


def test_a_job_that_gets_no_further_is_given_up():
    world = World(max_restarts=2)
    job = one_running(world)
    for _ in range(4):
        if job.final:
            break
        world.exit(world.roster(job.id)[0], -9)
        world.pass_time(40)
        world.settle(job.id)
    assert job.kept.phase is JobPhase.FAILED
    assert "killed 3 times in a row and it got no further" in job.kept.reason


def test_three_newcomers_in_a_row_that_end_at_their_start_hold_growth_back():
    world = World()
    job = one_running(world)
    world.ask(Scale(job=job.id, share=2))
    for _ in range(3):
        newcomer = [worker for worker in world.running(job.id) if worker != f"{job.id}.0"]
        world.exit(newcomer[0], 1, "exit code 1: ImportError: no")
        world.commit(job.id)
    assert "held" in world.kinds(job.id)
    assert world.running(job.id) == [f"{job.id}.0"]
    assert job.kept.phase is JobPhase.RUNNING
    world.pass_time(31)
    assert len(world.running(job.id)) == 2


def test_an_error_of_the_script_before_any_progress_fails_the_job_at_once():
    world = World()
    job = world.submit(job_spec(low=2, high=2))
    world.exit(f"{job.id}.1", 3, "exit code 3: ValueError: bad")
    assert job.kept.phase is JobPhase.FAILED
    assert (job.kept.exit_code, job.kept.reason) == (3, "exit code 3: ValueError: bad")
    assert [stop.worker for stop in world.messages(StopWorker)] == [f"{job.id}.0"]


def test_an_error_of_the_script_that_comes_back_fails_the_job():
    world = World()
    job = one_running(world)
    world.exit(world.roster(job.id)[0], 1, "exit code 1: ZeroDivisionError")
    world.pass_time(2)
    world.settle(job.id, 10)
    world.exit(world.roster(job.id)[0], 1, "exit code 1: ZeroDivisionError")
    world.pass_time(3)
    if not job.final:  # the first failure came after progress, so a second one without any is needed
        world.settle(job.id, 10)
        world.exit(world.roster(job.id)[0], 1, "exit code 1: ZeroDivisionError")
    assert job.kept.phase is JobPhase.FAILED
    assert job.kept.exit_code == 1
    assert "ZeroDivisionError" in job.kept.reason


def test_a_worker_that_ends_quietly_in_the_middle_of_training_is_a_loss():
    world = World()
    job = one_running(world, 2)
    world.exit(world.roster(job.id)[1], 0)
    assert not job.final
    assert job.kept.past[-1].reason == "ended in the middle of training (exit code 0)"


# -------------------------------------------------------------------------------------------------------------------- end


def test_a_job_is_finished_when_its_leader_exits_with_zero_and_the_rest_have_a_moment():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.report(first, WorkerPhase.FINISHED, job.kept.committed, 99)
    world.exit(first, 0)
    assert job.kept.phase is JobPhase.FINISHED
    assert world.messages(StopWorker) == []
    world.pass_time(6)
    assert [stop.worker for stop in world.messages(StopWorker)] == [second]
    world.exit(second, -15)
    assert job.kept.workers == ()
    assert world.ask(GetJob(job=job.id)).job.step == 99


def test_a_leader_that_is_lost_after_the_training_leaves_its_last_work_to_a_restart():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    for worker in (first, second):
        world.report(worker, WorkerPhase.FINISHED, job.kept.committed, 99)
    world.exit(second, 0)
    assert not job.final  # the leader is still saving the model
    world.exit(first, -9)
    world.pass_time(2)
    assert not job.final
    assert job.kept.restarts == 1
    assert world.roster(job.id)


def test_a_leader_that_those_who_train_do_not_know_is_replaced():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec("digits", 1, 1))
    world.arrive(job.id)
    (first,) = world.roster(job.id)
    job.update(target=(GpuAddress(server="s2", index=0),))  # moved before anybody has said that it trains
    world.machine.cluster.stir(job)
    world.turn()
    assert first not in world.roster(job.id)
    world.report(first, WorkerPhase.TRAINING, 1, 3)
    world.turn()
    assert job.newest.roster.leader == first
    assert first in world.roster(job.id)


def test_no_order_is_given_to_a_job_that_is_at_its_end():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.report(first, WorkerPhase.FINISHED, job.kept.committed, 99)
    generation = job.kept.generation
    world.exit(second, -9)
    assert job.kept.generation == generation
    world.exit(first, 0)
    assert job.kept.phase is JobPhase.FINISHED


def test_no_order_is_given_when_others_have_ended_before_their_leader_has_said_that_it_is_at_the_end():
    world = World()
    job = one_running(world, 3)
    first, second, third = world.roster(job.id)
    generation = job.kept.generation
    for worker in (second, third):
        world.report(worker, WorkerPhase.FINISHED, job.kept.committed, 99)
        world.exit(worker, 0)
    assert job.kept.generation == generation
    world.report(first, WorkerPhase.FINISHED, job.kept.committed, 99)
    world.exit(first, 0)
    assert job.kept.phase is JobPhase.FINISHED
    assert job.kept.generation == generation


def test_a_leader_that_needs_its_fellows_for_the_last_step_goes_on_without_those_that_have_ended():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.report(second, WorkerPhase.FINISHED, job.kept.committed, 99)
    world.exit(second, 0)
    world.report(first, B, job.kept.committed, 98)
    assert world.roster(job.id) == [first]


def test_a_leader_that_is_lost_when_all_others_have_ended_leaves_its_last_work_to_a_restart():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    world.report(second, WorkerPhase.FINISHED, job.kept.committed, 99)
    world.exit(second, 0)
    world.exit(first, -9)
    world.pass_time(2)
    assert job.kept.restarts == 1
    assert world.roster(job.id)


def test_a_job_that_is_preempted_in_the_moment_of_its_end_has_finished():
    world = World({"s1": 2})
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    committed = job.kept.committed
    job.update(target=())
    suspend(world.machine.cluster, world.now, job)
    world.report(second, WorkerPhase.FINISHED, committed, 99)
    world.exit(second, 0)
    assert job.kept.phase is JobPhase.PENDING
    world.report(first, WorkerPhase.FINISHED, committed, 99)
    world.restart()
    world.exit(first, 0)
    assert world.job(job.id).kept.phase is JobPhase.FINISHED
    assert world.running(job.id) == []


def test_cancelling_stops_all_workers_and_frees_their_gpus_as_they_end():
    world = World({"s1": 2})
    job = one_running(world, 2)
    waiting = world.submit(job_spec("other", 2, 2))
    assert waiting.kept.phase is JobPhase.PENDING
    first, second = world.roster(job.id)
    assert world.ask(Cancel(job=job.id)) == Cancelled(job=job.id)
    assert job.kept.phase is JobPhase.CANCELLED
    assert {stop.worker for stop in world.messages(StopWorker)} == {first, second}
    assert world.running(waiting.id) == []
    world.exit(first, -15)
    world.exit(second, -15)
    assert len(world.running(waiting.id)) == 2
    assert "lost" not in world.kinds(job.id)


def test_a_preempted_job_saves_its_state_and_is_not_started_again_before_that_is_done():
    world = World({"s1": 1})
    job = one_running(world, 1)
    (first,) = world.roster(job.id)
    target = job.kept.target
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
            uid=job.kept.uid,
        )
    ]
    assert world.messages(StopWorker) == asked
    job.update(target=target)
    world.machine.cluster.stir(job)
    world.turn()
    world.hello("s1")
    assert [(stop.grace_s, stop.save) for stop in world.messages(StopWorker)] == [(30.0, True)] * 2, "it still saves"
    assert not world.roster(job.id), "it would begin with an older checkpoint"
    world.exit(first, 0)
    assert len(world.roster(job.id)) == 1
    assert "restarted" not in world.kinds(job.id)


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
    world = World({"s1": 1})
    job = world.submit(job_spec(low=2, high=2))
    assert job.waiting_reason
    assert world.ask(Cancel(job=job.id)) == Cancelled(job=job.id)
    assert job.kept.phase is JobPhase.CANCELLED


def test_ends_are_recorded_before_they_are_forgotten():
    world = World()
    job = one_running(world, 2)
    worker = world.roster(job.id)[1]
    world.exit(worker, -9)
    assert ForgetWorkers(workers=(worker,), uids={worker: job.kept.uid}) in world.messages(ForgetWorkers)
    world.restart()
    assert worker in [entry.worker for entry in world.job(job.id).kept.past]


# --------------------------------------------------------------------------------------------------------------- servers


def test_a_silent_server_is_lost_and_its_stale_workers_are_stopped_when_it_is_back():
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 2)
    first, second = (member.worker for member in job.newest.roster.members)
    gone = job.newest.roster.members[1].gpu.server
    world.agents[gone].connected = False
    world.pass_time(11)
    assert "server-lost" in world.kinds()
    assert world.roster(job.id) == [first]
    world.commit(job.id)
    world.hello(gone)
    world.turn()
    assert second in [stop.worker for stop in world.messages(StopWorker)]
    assert world.roster(job.id) == [first]  # its GPU is not free yet
    world.exit(second, -15)
    world.settle(job.id)
    assert job.share_gpus == 2


def test_a_hello_within_the_lease_changes_nothing():
    world = World()
    job = one_running(world, 2)
    generation, count = job.kept.generation, len(world.messages(StartWorker))
    world.hello("s1")
    world.turn()
    assert (job.kept.generation, len(world.messages(StartWorker))) == (generation, count)
    assert world.kinds(job.id)[-1] != "lost"


def test_a_worker_that_its_agent_does_not_know_any_more_is_lost():
    world = World()
    job = one_running(world, 2)
    first, second = world.roster(job.id)
    agent, _ = world.find(second)
    del agent.running[WorkerId(second)]
    world.hello("s1")
    world.turn()
    assert world.roster(job.id) == [first]


def test_a_start_that_got_lost_is_repeated_at_the_next_hello():
    world = World()
    agent = world.agents[ServerId("s1")]
    agent.connected = False
    job = world.submit(job_spec(low=1, high=1))
    assert world.running(job.id) == []
    world.hello("s1")
    world.turn()
    assert world.running(job.id) == [f"{job.id}.0"]


def test_a_heartbeat_is_answered_with_the_number_of_messages_sent():
    world = World()
    one_running(world, 2)
    world.feed(_module.AgentMessage(ServerId("s1"), AgentHeartbeat(server=ServerId("s1"))))
    acknowledged = world.messages(_module.Acknowledged)[-1]
    assert acknowledged.sent == world.agents[ServerId("s1")].received


def test_a_worker_that_the_record_of_its_job_does_not_name_is_stopped():
    world = World({"s1": 2})
    job = one_running(world, 2)
    worker = WorkerId(world.roster(job.id)[1])
    process = world.find(worker)[1]
    world.exit(worker, -9)
    world.agents[ServerId("s1")].running[worker] = process
    world.report(worker, WorkerPhase.READY)
    assert worker in [stop.worker for stop in world.messages(StopWorker)]


# ---------------------------------------------------------------------------------------------------------------- clients


def test_a_repeated_submission_gets_the_first_answer_even_after_a_restart():
    world = World()
    first = world.ask(Submit(spec=job_spec()), "same")
    assert world.ask(Submit(spec=job_spec()), "same") == first
    world.restart()
    assert world.ask(Submit(spec=job_spec()), "same") == first
    assert len(world.machine.cluster.jobs) == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "Bad Name"}, "name"),
        ({"name": "../../etc"}, "name"),
        ({"command": ()}, "command"),
        ({"gpus": GpuRange(min=0, max=1)}, "gpus.min"),
        ({"gpus": GpuRange(min=3, max=2)}, "gpus"),
        ({"virtual_workers": 2}, "virtual_workers"),
        ({"workdir": "relative"}, "workdir"),
        ({"max_steps": 0}, "max_steps"),
        ({"env": {"A=B": "c"}}, "env"),
    ],
)
def test_a_wrong_specification_is_refused_with_the_field(changes, field):
    world = World()
    answer = world.ask(Submit(spec=job_spec(**changes)))
    assert isinstance(answer, Refused)
    assert answer.bad_input
    assert answer.reason.startswith(field)
    assert world.machine.cluster.jobs == {}


def test_a_share_that_the_job_cannot_use_is_refused():
    world = World()
    job = one_running(world)
    assert world.ask(Scale(job=job.id, share=0)).bad_input
    assert world.ask(Scale(job=job.id, share=9)).bad_input
    assert world.ask(Scale(job="nobody", share=1)).bad_input


def test_scaling_to_the_present_share_names_the_present_generation():
    world = World()
    job = one_running(world, 2)
    assert world.ask(Scale(job=job.id, share=2)) == Scaled(job=job.id, generation=job.kept.committed, share=2)


def test_a_job_is_found_by_its_name_while_that_is_unique():
    world = World({"s1": 4})
    first = world.submit(job_spec(high=1))
    assert world.ask(GetJob(job="digits")).job.job == first.id
    world.submit(job_spec(high=1))
    assert "name one of" in world.ask(GetJob(job="digits")).reason


def test_a_log_is_relayed_from_the_agent_and_refused_when_it_does_not_come():
    world = World()
    job = one_running(world)
    worker = job.kept.workers[0].worker
    assert world.ask(GetLog(job=job.id, worker=worker), "log1") is None
    assert world.messages(ReadLog)[-1].request == "log1"
    piece = LogPiece(request="log1", data=b"line\n", next_offset=5, end=False)
    world.feed(_module.AgentMessage(ServerId("s1"), piece))
    assert world.answers["log1"] == Log(data=b"line\n", next_offset=5, end=False)
    world.ask(GetLog(job=job.id, worker=worker), "log2")
    world.pass_time(6)
    assert isinstance(world.answers["log2"], Refused)
    assert world.ask(GetLog(job=job.id, worker=WorkerId("digits-1.77"))).bad_input


def test_events_are_given_in_order_after_a_number():
    world = World()
    job = one_running(world)
    events = world.ask(GetEvents(job=job.id)).events
    assert [event.kind for event in events][:2] == ["submitted", "ordered"]
    later = world.ask(GetEvents(after=events[0].number, job=job.id)).events
    assert later == events[1:]
    assert isinstance(world.ask(Submit(spec=job_spec())), Submitted)
