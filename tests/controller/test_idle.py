"""Use beside allocation, and jobs whose GPUs do nothing: told, shrunk, suspended with their state saved, never killed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from elasticd.controller.events import AgentMessage, Reconfigured
from elasticd.protocol.durations import idle_of
from elasticd.protocol.errors import UserError
from elasticd.protocol.messages import (
    AgentHeartbeat,
    Cancel,
    EventKind,
    GetJob,
    GetServers,
    Resume,
    Scale,
    StopWorker,
    Submit,
    WorkerExit,
    WorkerUse,
)
from elasticd.protocol.model import Idle, JobPhase, Notify, Use, WorkerPhase
from elasticd.protocol.times import USE_STALE_S

from .world import World, job_spec, one_running

RULES = Idle(warn_s=60.0, suspend_s=200.0)
Uses = dict[str, WorkerUse]


def report(world: Any, job: Any, idle_s: float | None, use: Use | None = None, only: int | None = None) -> None:
    """The agents tell the use of the job's workers: of all, or of the first few."""
    for worker in world.running(job.id)[:only]:
        agent, process = world.find(worker)
        told = WorkerUse(worker=worker, uid=process.uid, use=use or Use(), idle_s=idle_s)
        name = agent.server.server
        world.feed(AgentMessage(name, AgentHeartbeat(server=name, use=(told,)), agent.identity))
    world.turn()


def idles(world: Any, job: Any, seconds: float, begun_s: float = 0.0) -> None:
    """The job's GPUs do nothing for so long, as agents tell every ten seconds. `begun_s`: for so long they have already."""
    for passed in range(0, int(seconds) + 1, 10):
        report(world, job, begun_s + passed + 1.0)
        world.pass_time(10)


def saves(world: Any, job: Any, step: int) -> None:
    for worker in world.running(job.id):
        status = world.find(worker)[1].status
        world.report(worker, WorkerPhase.TRAINING, status.generation, step, saved=step)
    world.reap()


def told(world: Any, job: Any) -> list[str]:
    events = world.machine.cluster.history.events
    return [event.text for event in events if event.job == job.id and event.kind is EventKind.IDLE]


def view(world: Any, job: Any) -> Any:
    return world.ask(GetJob(job=job.id)).job


# ---------------------------------------------------------------------------------------------------------------- idle


def test_an_idle_job_is_warned_then_paused_with_its_state_saved_and_goes_on_when_it_is_resumed() -> None:
    world = World({"s1": 2}, idle=RULES)
    job = one_running(world, gpus=2, notify=(Notify.IDLE,))
    idles(world, job, 100)
    assert told(world, job) == ["its 2 GPUs have done nothing for 1m00s; after 3m20s it is paused with its state saved"]
    assert "its 2 GPUs have done nothing for" in view(world, job).reason
    assert not world.messages(StopWorker)
    idles(world, job, 100, 110.0)
    assert {(stop.worker, stop.save) for stop in world.messages(StopWorker)} == {
        (worker, True) for worker in world.running(job.id)
    }
    saves(world, job, 10)
    shown = view(world, job)
    assert (shown.phase, shown.saved_step) == (JobPhase.PENDING, 10)
    again = f"`elasticctl resume {job.id}` lets it run again"
    assert shown.reason == f"paused, as its 2 GPUs have done nothing for 3m20s: {again}"
    assert len(told(world, job)) == 2
    assert [notice.event for notice in world.machine.cluster.notices.pending.values()] == [EventKind.IDLE] * 2
    world.ask(Resume(job=job.id))
    world.settle(job.id, step=11)
    assert view(world, job).phase is JobPhase.RUNNING
    assert not job.record.idle_warned


@pytest.mark.parametrize("idle_s", [0.0, None])
def test_a_job_that_computes_or_of_which_that_is_unknown_is_left_alone(idle_s: float | None) -> None:
    world = World({"s1": 2}, idle=RULES)
    job = one_running(world, gpus=2)
    for _ in range(60):
        report(world, job, idle_s)
        world.pass_time(10)
    assert not told(world, job)
    assert view(world, job).phase is JobPhase.RUNNING


def test_one_gpu_that_computes_or_is_not_reported_on_keeps_the_job() -> None:
    world = World({"s1": 2}, idle=RULES)
    job = one_running(world, gpus=2)
    for passed in range(0, 600, 10):
        report(world, job, 1.0 + passed, only=1)
        world.pass_time(10)
    assert not told(world, job)


def test_reports_that_have_ended_are_no_longer_believed() -> None:
    world = World({"s1": 1}, idle=Idle(suspend_s=USE_STALE_S + 100.0))
    job = one_running(world)
    report(world, job, 50.0)
    world.pass_time(2 * USE_STALE_S)
    assert not told(world, job)


def test_the_time_of_a_start_of_a_resize_and_of_a_checkpoint_does_not_count() -> None:
    world = World({"s1": 2}, idle=RULES)
    job = one_running(world, gpus=1)
    world.pass_time(20)
    report(world, job, 1000.0)  # longer than the job has run
    assert not told(world, job)
    world.ask(Scale(job=job.id, share=2))
    idles(world, job, 300)  # the second worker has not arrived
    assert not told(world, job)


def test_a_warned_job_that_computes_again_is_warned_again_later() -> None:
    world = World({"s1": 1}, idle=RULES)
    job = one_running(world)
    idles(world, job, 80)
    assert len(told(world, job)) == 1
    report(world, job, 0.0)
    assert not view(world, job).reason
    idles(world, job, 80)
    assert len(told(world, job)) == 2


def test_a_warning_outlives_the_controller_and_is_not_repeated() -> None:
    world = World({"s1": 1}, idle=RULES)
    job = one_running(world)
    idles(world, job, 80)
    world.restart()
    idles(world, world.job(job.id), 60, 80.0)
    assert len(told(world, job)) == 1
    idles(world, world.job(job.id), 60, 160.0)
    assert len(told(world, job)) == 2


def test_a_job_shrinks_to_its_minimum_and_grows_back_when_its_gpus_compute() -> None:
    world = World({"s1": 4}, idle=Idle(shrink_s=60.0, suspend_s=3600.0))
    job = world.submit(job_spec(low=1, high=4))
    world.settle(job.id)
    assert len(world.roster(job.id)) == 4
    idles(world, job, 80)
    assert told(world, job) == ["its 4 GPUs have done nothing for 1m00s: it shrinks to 1 GPU until they do something"]
    world.settle(job.id, 12)
    world.restart()
    job = world.job(job.id)
    assert len(world.roster(job.id)) == 1
    idles(world, job, 80, 100.0)
    assert len(told(world, job)) == 1
    assert view(world, job).reason.startswith("is shrunk to 1 GPU")
    report(world, job, 0.0)
    world.settle(job.id, 14)
    assert len(world.roster(job.id)) == 4


def test_a_share_that_is_set_by_hand_counts_more_than_idle_gpus() -> None:
    world = World({"s1": 4}, idle=Idle(shrink_s=60.0))
    job = world.submit(job_spec(low=1, high=4))
    world.settle(job.id)
    idles(world, job, 80)
    world.settle(job.id, 12)
    world.ask(Scale(job=job.id, share=3))
    world.settle(job.id, 14)
    assert len(world.roster(job.id)) == 3


def test_a_command_that_saves_nothing_is_told_and_never_ended() -> None:
    world = World({"s1": 1}, idle=Idle(suspend_s=60.0))
    job = world.submit(job_spec("shell", 1, 1, restarts=0))
    world.pass_time(5)
    assert view(world, job).phase is JobPhase.RUNNING
    idles(world, job, 400)
    (text,) = told(world, job)
    assert text == (
        "its 1 GPU has done nothing for 1m00s; it has not called elastic.join(), so its state cannot be saved: "
        f"`elasticctl cancel {job.id}` ends it"
    )
    assert view(world, job).phase is JobPhase.RUNNING
    assert not world.messages(StopWorker)


def test_without_rules_nothing_is_done_and_a_job_may_have_its_own() -> None:
    world = World({"s1": 2})
    plain, strict = one_running(world), one_running(world, idle=Idle(suspend_s=60.0))
    idles(world, plain, 200)
    assert not told(world, plain)
    idles(world, strict, 60)
    assert len(told(world, strict)) == 1
    answer = World({"s1": 1}).ask(Submit(spec=job_spec(idle=Idle(warn_s=float("nan")))))
    assert answer.reason.startswith("idle: warn: nan s is not allowed")


def test_rules_that_are_read_again_count_from_the_next_report_on() -> None:
    world = World({"s1": 1}, idle=Idle(suspend_s=10_000.0))
    job = one_running(world)
    idles(world, job, 100)
    settings = replace(world.machine.cluster.settings, idle=Idle(warn_s=30.0))
    world.feed(Reconfigured(settings, world.machine.cluster.planning.decider.scheduler))
    idles(world, job, 10, 110.0)
    assert len(told(world, job)) == 1


def test_a_job_that_is_being_cancelled_is_not_idle() -> None:
    world = World({"s1": 1}, idle=RULES)
    job = one_running(world)
    world.ask(Cancel(job=job.id, save=True))
    idles(world, job, 100)
    assert not told(world, job)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("warn", "'warn' is not one of warn, shrink, suspend"),
        ("warn 10", "'warn 10' is not one of"),
        ("kill 1h", "'kill 1h' is not one of"),
        ("warn 1h, warn 2h", "'warn 2h' is not one of"),
        ("suspend 1x", "idle: suspend: '1x' is not a duration"),
        ("warn 2h, suspend 1h", "warn has to come before suspend"),
        ("suspend 5s", "10s is the least"),
        ("", "'' is not one of"),
    ],
)
def test_rules_that_are_none_are_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        idle_of(text, "idle")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_earlier_of_two_rules_counts() -> None:
    rules = idle_of("warn 10m, suspend 1h", "idle").and_(idle_of("shrink 5m, suspend 2h", "idle"))
    assert rules == Idle(warn_s=600.0, shrink_s=300.0, suspend_s=3600.0)


# ----------------------------------------------------------------------------------------------------------------- use


def test_use_is_summed_over_workers_that_run_and_have_ended_and_outlives_the_controller() -> None:
    world = World({"s1": 2})
    job = one_running(world, gpus=2)
    used = Use(gpu_s=100.0, busy_gpu_s=80.0, cpu_s=50.0, wall_s=100.0, memory_bytes=7 << 30, gpu_memory_bytes=1 << 30)
    report(world, job, 0.0, used)
    shown = view(world, job)
    assert shown.use == msgspec.structs.replace(used, gpu_s=200.0, busy_gpu_s=160.0, cpu_s=100.0, wall_s=200.0)
    assert shown.busy == pytest.approx(0.8)
    assert [worker.busy for worker in shown.workers] == [pytest.approx(0.8)] * 2
    records = len(world.store)
    more = msgspec.structs.replace(used, gpu_s=200.0, busy_gpu_s=130.0, wall_s=200.0, memory_bytes=9 << 30)
    stored = dict(world.store)
    report(world, job, 0.0, more)
    assert (len(world.store), world.store) == (records, stored), "a sample is no record"
    shown = view(world, job)
    assert shown.busy == pytest.approx(0.5)
    assert shown.use.memory_bytes == 9 << 30
    assert world.ask(GetServers()).servers[0].busy == {0: pytest.approx(0.5), 1: pytest.approx(0.5)}
    worker = world.roster(job.id)[1]
    world.exit(worker, 1, "ValueError")
    world.settle(job.id, 12)
    world.restart()
    job = world.job(job.id)
    assert view(world, job).use == more, "of the worker that has ended"
    report(world, job, 0.0, more, only=1)
    assert view(world, job).use.busy_gpu_s == 260.0


def test_an_end_tells_the_last_use_and_twice_the_same_end_counts_once() -> None:
    world = World({"s1": 1})
    job = one_running(world)
    report(world, job, 0.0, Use(gpu_s=10.0, busy_gpu_s=5.0))
    (worker,) = world.running(job.id)
    agent, process = world.find(worker)
    last = Use(gpu_s=30.0, busy_gpu_s=25.0)
    ended = WorkerExit(
        job=job.id, worker=worker, exit_code=1, reason="", uid=process.uid, status=process.status, use=last
    )
    del agent.running[worker]
    for _ in range(2):
        world.feed(AgentMessage(agent.server.server, ended, agent.identity))
    world.turn()
    assert view(world, job).use == last


def test_an_agent_that_restarts_counts_from_zero_and_nothing_is_lost() -> None:
    world = World({"s1": 1})
    job = one_running(world)
    report(world, job, 0.0, Use(gpu_s=100.0, busy_gpu_s=50.0, cpu_s=7.0, wall_s=100.0))
    report(world, job, 0.0, Use(gpu_s=10.0, busy_gpu_s=10.0, cpu_s=1.0, wall_s=10.0))
    assert view(world, job).use == Use(gpu_s=110.0, busy_gpu_s=60.0, cpu_s=8.0, wall_s=110.0)
    assert view(world, job).busy == 1.0


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -1.0])
def test_odd_counts_and_those_of_strangers_are_ignored(odd: float) -> None:
    world = World({"s1": 1})
    job = one_running(world)
    report(world, job, 0.0, Use(gpu_s=odd))
    report(world, job, odd, Use(gpu_s=1.0))
    stranger = WorkerUse(worker="other-7.0", uid="", use=Use(gpu_s=5.0))  # type: ignore[arg-type]
    world.feed(AgentMessage("s1", AgentHeartbeat(server="s1", use=(stranger,)), ""))  # type: ignore[arg-type]
    assert view(world, job).use is None


def test_heartbeats_and_ends_of_agents_without_samples_are_read_and_the_other_way_round() -> None:
    class AgentHeartbeatBefore(msgspec.Struct, frozen=True, kw_only=True, tag="AgentHeartbeat"):
        server: str
        clock_s: float = 0.0

    told = WorkerUse(worker="a-1.0", uid="x", use=Use(gpu_s=1.0), idle_s=2.0)  # type: ignore[arg-type]
    now = msgspec.msgpack.encode(AgentHeartbeat(server="s1", use=(told,)))  # type: ignore[arg-type]
    assert msgspec.msgpack.decode(now, type=AgentHeartbeatBefore).server == "s1"
    before = msgspec.msgpack.encode(AgentHeartbeatBefore(server="s1"))
    assert msgspec.msgpack.decode(before, type=AgentHeartbeat).use == ()
    assert len(now) - len(msgspec.msgpack.encode(AgentHeartbeat(server="s1"))) < 200, "bytes of one worker"  # type: ignore[arg-type]
