"""Gangs: commands without a call of `elastic.join()`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasticd.controller.events import AgentMessage
from elasticd.controller.jobs.avoided import Avoidance
from elasticd.controller.jobs.generations import GiveOrder, next_step
from elasticd.protocol.messages import (
    AgentHeartbeat,
    Cancel,
    EventKind,
    GetJob,
    Profile,
    Refused,
    Scale,
    StartWorker,
    StopWorker,
    WorkerExit,
)
from elasticd.protocol.model import (
    Fault,
    GpuAddress,
    JobPhase,
    Processes,
    ServerId,
    Severity,
    Trouble,
    WorkerId,
    WorkerPhase,
)
from elasticd.protocol.times import JOIN_NOTICE_S, SILENT_SERVER_S
from elasticd.scheduler.policies import POLICIES

from .world import World, job_spec


def command(gpus: int = 2, restarts: int | None = 0, **changes: Any):
    """Specification of fixed size, without `must_join`."""
    return job_spec("run", gpus, gpus, restarts=restarts, **changes)


def starts(world) -> list[StartWorker]:
    return world.messages(StartWorker)


def test_a_command_runs_as_soon_as_all_its_processes_do_and_has_finished_when_all_have_ended_with_zero():
    world = World()
    job = world.submit(command(2))
    assert job.record.phase is JobPhase.STARTING
    world.pass_time(2)
    assert (job.record.phase, job.share_gpus) == (JobPhase.RUNNING, 2)
    world.exit("run-1.0", 0)
    assert job.record.phase is JobPhase.RUNNING
    world.exit("run-1.1", 0)
    assert (job.record.phase, job.record.exit_code) == (JobPhase.FINISHED, 0)
    assert EventKind.LOST not in world.kinds(job.id)


def test_a_process_that_fails_fails_the_job_and_its_fellows_are_stopped():
    world = World()
    job = world.submit(command(2))
    world.pass_time(2)
    world.exit("run-1.1", 3, "exit code 3: ValueError: bad")
    assert (job.record.phase, job.record.exit_code) == (JobPhase.FAILED, 3)
    assert job.record.reason == "run-1.1 on s1:1: exit code 3: ValueError: bad"
    assert [stop.worker for stop in world.messages(StopWorker)] == ["run-1.0"]


def test_a_command_whose_exit_codes_mean_something_to_workers_fails_all_the_same():
    world = World()
    job = world.submit(command(1, restarts=5))
    world.exit("run-1.0", 80)
    assert job.record.phase is JobPhase.FAILED


def test_a_killed_command_is_not_run_again_unless_its_user_says_so():
    world = World()
    job = world.submit(command(2))
    world.pass_time(2)
    world.exit("run-1.0", -9, "killed by SIGKILL")
    assert job.record.phase is JobPhase.FAILED
    assert "a command may not be safe to run twice: `--restarts N` allows it" in job.record.reason
    world.reap()
    assert not job.workers


def test_a_command_of_a_moment_has_started_and_had_its_gpus():
    world = World()
    job = world.submit(command(2))
    for worker in ("run-1.0", "run-1.1"):
        world.exit(worker, 0, turn=False)
    world.turn()
    assert (job.record.phase, job.record.peak_gpus) == (JobPhase.FINISHED, 2)
    assert job.record.started_s is not None
    assert job.submission.submitted_s <= job.record.started_s <= job.record.finished_s


def test_a_killed_command_is_run_again_whole_as_often_as_it_may():
    world = World()
    job = world.submit(command(2, restarts=1))
    world.pass_time(2)
    world.exit("run-1.0", -9)
    assert [stop.worker for stop in world.messages(StopWorker)] == ["run-1.1"]
    world.pass_time(30)
    assert len(starts(world)) == 2, "the other one still runs"
    world.reap()
    world.pass_time(2)
    assert world.running(job.id) == ["run-1.2", "run-1.3"]
    assert (job.record.phase, job.record.restarts) == (JobPhase.RUNNING, 1)
    assert [entry.attempt for entry in (*job.record.past, *job.workers)] == [1, 1, 2, 2]
    world.exit("run-1.3", -9)
    assert job.record.phase is JobPhase.FAILED
    assert "it has been run again 1 times" in job.record.reason


def test_a_restart_is_counted_when_it_is_decided_and_survives_the_controller_and_a_wait_for_gpus():
    world = World({"s1": 1})
    job = world.submit(command(1, restarts=1))
    world.pass_time(2)
    world.exit("run-1.0", -9, turn=False)
    world.turn()
    assert world.job(job.id).record.restarts == 1
    world.restart()
    job = world.job(job.id)
    world.pass_time(3)
    assert world.running(job.id) == ["run-1.1"]
    world.exit("run-1.1", -9)
    assert job.record.phase is JobPhase.FAILED


def test_a_start_that_never_came_about_does_not_count():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(command(1))
    world.exit("run-1.0", None, "cannot be started: No space left on device", fault=Fault.SERVER)
    world.pass_time(3)
    assert (job.record.phase, job.record.restarts) == (JobPhase.RUNNING, 0)
    assert world.find(world.running(job.id)[0])[0].server.server == "s2"


def test_a_start_that_never_came_about_counts_where_its_fellows_may_have_begun():
    world = World({"s1": 2})
    job = world.submit(command(2))
    world.exit("run-1.0", None, "cannot be started: No space left on device", fault=Fault.SERVER)
    assert job.record.phase is JobPhase.FAILED


def test_a_gang_starts_only_when_all_of_its_gpus_are_free():
    world = World({"s1": 2})
    first = world.submit(command(1))
    world.pass_time(2)
    second = world.submit(command(2))
    assert world.running(second.id) == []
    assert "1 of 2 belongs to jobs that cannot be resized" in world.ask(GetJob(job=second.id)).job.reason
    world.exit("run-1.0", 0)
    assert first.final
    assert len(world.running(second.id)) == 2


def test_the_processes_of_a_gang_are_told_where_to_meet():
    world = World({"s1": 2, "s2": 1})
    world.submit(command(3))
    told = [start.rendezvous for start in starts(world)]
    assert [(r.process, r.processes, r.server, r.servers) for r in told] == [(0, 3, 0, 2), (1, 3, 0, 2), (2, 3, 1, 2)]
    assert {(r.address, r.port) for r in told} == {("127.0.0.1", 29_500)}
    assert [r.local for r in told] == [(0, 1), (0, 1), (0,)]


def test_one_process_has_all_gpus_of_the_job_on_its_server_and_holds_them():
    world = World({"s1": 2, "s2": 2})
    job = world.submit(command(4, processes=Processes.PER_SERVER))
    assert [(start.gpu, start.gpus) for start in starts(world)] == [(0, (0, 1)), (0, (0, 1))]
    world.pass_time(2)
    assert job.share_gpus == 4
    other = world.submit(command(1))
    assert world.running(other.id) == []
    world.exit("run-1.0", 0)
    world.exit("run-1.1", 0)
    assert job.record.phase is JobPhase.FINISHED
    assert len(world.running(other.id)) == 1


@pytest.mark.parametrize("policy", [policy.name for policy in POLICIES])
def test_no_policy_resizes_moves_or_preempts_a_gang(policy: str):
    world = World({"s1": 2, "s2": 2}, policy=policy)
    gang = world.submit(command(2, priority=-10))
    world.pass_time(2)
    target = gang.record.target
    others = [world.submit(job_spec("other", 1, 2, priority=10)) for _ in range(3)]
    for _ in range(40):
        world.pass_time(60)
        for other in others:
            world.settle(other.id)
        assert gang.record.target == target
    assert gang.record.phase is JobPhase.RUNNING
    assert len(world.running(gang.id)) == 2
    assert any(other.share_gpus for other in others)


def test_a_job_is_elastic_once_a_worker_has_joined_and_a_controller_remembers_it():
    world = World({"s1": 4})
    job = world.submit(job_spec(low=1, high=4))
    assert not world.ask(GetJob(job=job.id)).job.elastic
    world.report(f"{job.id}.0", WorkerPhase.STARTING)
    assert world.ask(GetJob(job=job.id)).job.elastic
    world.restart(hello=False)
    assert world.job(job.id).record.joined


def test_a_job_that_will_join_is_resized_as_soon_as_it_has():
    world = World({"s1": 4})
    first = world.submit(job_spec("first", 1, 4))
    second = world.submit(job_spec("second", 1, 4))
    assert world.running(second.id) == [], "the first one is about to join"
    world.settle(first.id)
    world.reap()
    assert first.share_gpus < 4
    assert world.running(second.id)


def test_a_range_that_has_not_joined_after_a_minute_is_shown_as_a_gang():
    world = World({"s1": 2})
    job = world.submit(job_spec("run", 1, 2))
    world.pass_time(JOIN_NOTICE_S - 5)
    assert job.record.phase is JobPhase.STARTING
    world.pass_time(10)
    assert job.record.phase is JobPhase.RUNNING
    view = world.ask(GetJob(job=job.id)).job
    assert view.reason == "has not called elastic.join(): runs as a fixed gang of 2 GPUs"
    world.pass_time(5000)
    assert not job.final, "nobody has set a limit"
    world.settle(job.id)
    assert job.share_gpus == 2
    assert world.ask(GetJob(job=job.id)).job.elastic


def test_scale_and_profile_of_a_gang_are_refused_at_once_with_the_reason():
    world = World()
    job = world.submit(command(2))
    world.pass_time(2)
    for request in (Scale(job=job.id, share=1), Scale(job=job.id, share=100), Profile(job=job.id)):
        answer = world.ask(request)
        assert isinstance(answer, Refused)
        assert "its command has not called elastic.join(), so it is a fixed gang of 2 GPUs" in answer.reason


def test_a_share_that_is_set_before_a_job_joins_is_its_share_from_then_on():
    world = World()
    job = world.submit(job_spec(low=1, high=4))
    world.ask(Scale(job=job.id, share=1))
    assert len(world.running(job.id)) == 4
    world.settle(job.id)
    world.reap()
    assert job.share_gpus == 1


def test_a_silent_server_is_waited_for_where_a_command_must_not_run_twice():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(command(2, restarts=3))
    world.pass_time(2)
    world.agents["s2"].connected = False
    world.pass_time(100)
    assert not job.restart_counted
    assert "where its command may still run" in world.ask(GetJob(job=job.id)).job.reason
    world.hello("s2")
    world.pass_time(SILENT_SERVER_S)
    assert (job.record.phase, job.record.restarts) == (JobPhase.RUNNING, 0)


def test_a_server_that_stays_silent_is_given_up():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(command(2))
    world.pass_time(2)
    world.agents["s2"].connected = False
    world.pass_time(SILENT_SERVER_S + 30)
    assert job.record.phase is JobPhase.FAILED
    assert "server s2 is lost" in job.record.reason
    world.reap()
    assert not job.workers


def test_a_server_that_comes_back_without_the_process_breaks_the_gang():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(command(2))
    world.pass_time(2)
    world.agents["s2"].connected = False
    world.agents["s2"].running.clear()
    world.pass_time(100)
    world.hello("s2")
    world.turn()
    assert job.record.phase is JobPhase.FAILED
    assert "does not know it any more" in job.record.reason


def test_a_process_that_is_being_stopped_holds_all_of_its_gpus():
    world = World({"s1": 2})
    job = world.submit(command(2, processes=Processes.PER_SERVER))
    world.pass_time(2)
    world.ask(Cancel(job=job.id))
    others = [world.submit(command(1)) for _ in range(2)]
    assert [world.running(other.id) for other in others] == [[], []]
    world.reap()
    assert [len(world.running(other.id)) for other in others] == [1, 1]


def test_a_gang_runs_though_one_of_its_processes_has_ended_before_it_was_heard_of():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(command(2))
    beat = AgentHeartbeat(server=ServerId("s2"), starting=(WorkerId("run-1.1"),))
    world.feed(AgentMessage(ServerId("s2"), beat))
    world.exit("run-1.0", 0)
    world.pass_time(5)
    assert (job.record.phase, job.share_gpus) == (JobPhase.RUNNING, 2)


def test_a_start_that_never_came_about_counts_where_a_fellow_has_ended_already():
    world = World({"s1": 2})
    job = world.submit(command(2))
    world.exit("run-1.0", 0)
    world.exit("run-1.1", None, "cannot be started: No space left on device", fault=Fault.SERVER)
    world.pass_time(30)
    assert job.record.phase is JobPhase.FAILED
    assert len(starts(world)) == 2, "its first process has done its work, and must not do it again"


def test_a_process_that_cannot_be_started_any_more_breaks_its_gang():
    world = World({"s1": 1, "s2": 1})
    world.agents["s2"].connected = False
    job = world.submit(command(2))
    world.agents["s2"].connected = True
    world.trouble("s2", Trouble(code="xid-63", severity=Severity.NO_NEW_WORK, text="remapped", gpu=0))
    world.pass_time(30)
    if not job.final:
        world.exit("run-1.0", 0)
    assert job.record.phase is not JobPhase.FINISHED, "its second process has never run"
    assert job.record.phase is JobPhase.FAILED


def test_a_reason_counts_those_gpus_of_gangs_alone_that_the_job_could_use():
    world = World({"a1": 4, "v1": 8}, kinds={"a1": ("NVIDIA A100", 1 << 35), "v1": ("Tesla V100", 1 << 34)})
    world.submit(command(8, gpu_types=("V100",)))
    world.submit(command(1, gpu_types=("A100",)))
    world.pass_time(2)
    typed = world.submit(job_spec("typed", 4, 4, gpu_types=("A100",)))
    whole = world.submit(job_spec("whole", 8, 8, gpus_per_server=8))
    told = [world.ask(GetJob(job=job.id)).job.reason for job in (typed, whole)]
    assert told[0] == "waits for 4 A100: 1 of 4 belongs to jobs that cannot be resized"
    assert told[1] == "waits for 8 GPUs, 8 on each server: jobs that cannot be resized leave 0 of 8"


def test_a_reason_counts_the_gpus_of_a_gang_on_a_silent_server_once():
    world = World({"s1": 2, "s2": 2})
    world.submit(command(3))
    world.pass_time(2)
    world.agents["s2"].connected = False
    world.pass_time(60)
    job = world.submit(job_spec("large", 4, 4))
    assert world.ask(GetJob(job=job.id)).job.reason.startswith(
        "waits for 4 GPUs: 2 of 4 belong to jobs that cannot be resized"
    )


def test_a_gang_whose_only_server_is_lost_before_it_has_begun_waits_again():
    world = World({"s1": 1})
    first = world.submit(command(1))
    world.pass_time(2)
    world.ask(Cancel(job=first.id))
    job = world.submit(command(1))
    assert job.record.phase is JobPhase.STARTING, "it waits for the process of the first one to end"
    world.agents["s1"].connected = False
    world.pass_time(60)
    assert job.record.phase is JobPhase.PENDING
    assert "s1 is lost" in world.ask(GetJob(job=job.id)).job.reason
    world.agents["s1"].running.clear()
    world.hello("s1")
    world.pass_time(5)
    assert (job.record.phase, job.record.restarts) == (JobPhase.RUNNING, 0)


def test_a_job_that_joins_while_a_server_is_silent_does_not_say_that_it_waits_for_it():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec("run", 1, 2, restarts=3))
    world.pass_time(2)
    world.agents["s2"].connected = False
    world.pass_time(30)
    assert "where its command may still run" in world.ask(GetJob(job=job.id)).job.reason
    world.settle(job.id)
    assert world.roster(job.id) == ["run-1.0"]
    assert "where its command may still run" not in world.ask(GetJob(job=job.id)).job.reason


def test_a_start_that_the_agent_has_refused_does_not_count_whosever_fault_that_was():
    world = World({"s1": 1})
    job = world.submit(command(1))
    agent, process = world.find("run-1.0")
    del agent.running["run-1.0"]
    refused = WorkerExit(
        job=job.id,
        worker="run-1.0",
        exit_code=None,
        reason="too many ends",
        fault=Fault.LOST,
        uid=process.uid,
        begun=False,
    )
    world.feed(AgentMessage(agent.server.server, refused, agent.identity))
    world.pass_time(5)
    assert (job.record.phase, job.record.restarts) == (JobPhase.RUNNING, 0)


def test_a_gang_meets_at_the_port_that_is_kept_free_when_it_starts():
    world = World({"s1": 2})
    first = world.submit(command(2))
    world.pass_time(2)
    world.ask(Cancel(job=first.id))
    second = world.submit(command(2))
    agent = world.agents["s1"]
    slots = tuple(msgspec.structs.replace(gpu, port=40_000 + gpu.index) for gpu in agent.server.gpus)
    agent.server = msgspec.structs.replace(agent.server, gpus=slots)
    agent.start += 1
    world.hello("s1")
    world.reap()
    world.pass_time(2)
    told = [start.rendezvous for start in starts(world) if start.job == second.id]
    assert {one.port for one in told} == {40_000}


def test_what_an_elastic_worker_on_a_server_that_is_given_up_held_was_lost():
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec("run", 2, 2, restarts=0, must_join=True))
    world.pass_time(2)
    world.agents["s2"].connected = False
    world.pass_time(SILENT_SERVER_S + 30)
    assert job.final
    world.reap()
    assert world.ask(GetJob(job=job.id)).job.gpu_seconds.lost_gpu_s > SILENT_SERVER_S


def behind_a_cancelled_gang(gpus):
    """A cluster with so many GPUs, and a gang that needs all of them and waits for the processes of a cancelled gang to end."""
    world = World({"s1": gpus})
    first = world.submit(command(gpus))
    world.pass_time(2)
    world.ask(Cancel(job=first.id))
    job = world.submit(command(gpus))
    assert not job.gang
    return world, job


def test_a_gang_that_has_not_begun_is_not_moved_to_a_server_where_it_cannot_begin():
    world, job = behind_a_cancelled_gang(1)
    job.set_target(world.now, (GpuAddress(server=ServerId("s2"), index=0),), "it moves")
    step = next_step(job, lambda gpu: True, ())
    assert isinstance(step, GiveOrder)
    assert [slot.gpu.server for slot in step.slots] == ["s2"]
    job.avoid(world.now, ServerId("s2"), "its data are missing there", Avoidance.REFUSED)
    assert next_step(job, lambda gpu: True, ()) is None


def test_a_gang_that_has_not_begun_is_not_ordered_on_fewer_gpus_than_it_needs():
    world, job = behind_a_cancelled_gang(2)
    job.set_target(world.now, job.record.target[:1], "one GPU does not work any more")
    assert next_step(job, lambda gpu: True, ()) is None
