"""A job leaves a GPU on which its worker is slow: for an idle GPU, or altogether (`slow_gpus`, `slow_findings`; EDL 5.4)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from elasticd.controller.jobs.records import SlowGpuState
from elasticd.controller.recovery import differences
from elasticd.protocol.messages import EventKind, GetJob, GetServers, Scale, UncordonServer
from elasticd.protocol.model import GpuAddress, ServerId, Severity, Steady, Straggler, Trouble, WorkerPhase
from elasticd.protocol.principals import Principal, Role
from elasticd.protocol.times import FIRST_SLOW_BACK_OFF_S
from elasticd.scheduler.policies import NAMES
from elasticd.scheduler.scheduler import Stages

from .world import World, job_spec

ALICE, BOB = (Principal(role=Role.USER, name=name, account=name) for name in ("alice", "bob"))
STEP_S = 0.4
PACKED = {"elasticflow", "edf-elastic"}  # a job of three GPUs would have two or four
# A job has what it has asked for, or nothing. (Other rigid policies let jobs go on with fewer when GPUs are lost.)
ALL_OR_NOTHING = {
    "chronus",
    "elastic-tiresias",
    "gandiva",
    "srsf",
    "srsf-e",
    "srtf",
    "srtf-e",
    "tiresias-l",
}


def running(world: Any, share: int = 3, who: Principal = ALICE, **changes: Any) -> str:
    """A job that trains on so many GPUs, at most."""
    job = world.submit(job_spec(**{"low": 1, "high": share, **changes}), who=who).id
    world.settle(job)
    assert len(world.roster(job)) == share
    return str(job)


def tell(world: Any, job: str, victim: str = "", kept: float = 0.5, without: float = 1.0, **figures: Any) -> GpuAddress:
    """The job's leader reports that a worker is slow, and what it costs; returns its GPU. victim: default, the last one."""
    order = world.job(job).committed_order
    members = {member.worker: member.gpu for member in order.roster.members}
    worker = victim or max(name for name in members if name != order.roster.leader)
    found = Straggler(
        worker=worker, slowdown=8.0, since_s=world.now - 40.0, samples=22, hosts=1, kept=kept, without=without
    )
    steady = Steady(generation=order.generation, step_s=figures.pop("step_s", STEP_S), steps=32)
    world.report(
        order.roster.leader, WorkerPhase.TRAINING, order.generation, 50, stragglers=(found,), steady=steady, **figures
    )
    world.pass_time(2.0)
    return members[worker]


def measure(world: Any, job: str, step_s: float) -> None:
    """The job's leader reports the time of a step in the committed generation, and no slow worker."""
    order = world.job(job).committed_order
    steady = Steady(generation=order.generation, step_s=step_s, steps=32)
    world.report(order.roster.leader, WorkerPhase.TRAINING, order.generation, 200, steady=steady)
    world.pass_time(2.0)


def gpus(world: Any, job: str) -> set[GpuAddress]:
    return set(world.job(job).record.target)


def told(world: Any, job: str | None) -> list[str]:
    return [one.text for one in world.machine.cluster.history.events if (one.kind, one.job) == (EventKind.SLOW, job)]


def server(world: Any, name: str) -> Any:
    return next(one for one in world.ask(GetServers()).servers if one.server.server == name)


# ----------------------------------------------------------------------------------------------------------- replaced


@pytest.mark.parametrize("policy", sorted(set(NAMES) - PACKED))
def test_a_worker_that_costs_too_much_moves_to_an_idle_gpu_and_the_others_stay(policy: str) -> None:
    world = World({"s1": 2, "s2": 2}, policy=policy)
    job = running(world)
    before, generation = gpus(world, job), world.job(job).newest.generation
    slow = tell(world, job)
    assert world.job(job).newest.generation == generation + 1
    world.settle(job)
    after = gpus(world, job)
    assert slow in before
    assert slow not in after
    assert len(after) == len(before)
    assert before - after == {slow}
    (event,) = told(world, job)
    assert f"leaves {slow} for 10m00s" in event
    assert "takes 8.0 times as long as the others" in event
    assert "its worker moves to" in event


def test_a_worker_stays_where_no_gpu_is_idle_and_moves_as_soon_as_one_is() -> None:
    world = World({"s1": 2, "s2": 2})
    job, other = running(world), running(world, 1, BOB)
    slow = tell(world, job)
    assert slow in gpus(world, job)
    assert told(world, job) == []
    (idle,) = gpus(world, other)
    for worker in world.running(other):
        world.report(worker, WorkerPhase.FINISHED, world.job(other).newest.generation, 60)
        world.exit(worker, 0)
    world.pass_time(2.0)
    assert slow not in gpus(world, job)
    assert idle in gpus(world, job)


def test_a_gpu_of_another_type_replaces_none() -> None:
    kinds = {"s1": ("NVIDIA A100-SXM4-40GB", 40 << 30), "s2": ("Tesla V100-SXM2-16GB", 16 << 30)}
    world = World({"s1": 3, "s2": 2}, kinds=kinds)
    job = running(world)
    before = gpus(world, job)
    tell(world, job)
    assert gpus(world, job) == before


def test_a_slow_worker_that_costs_little_stays() -> None:
    world = World({"s1": 4})
    job = running(world)
    before = gpus(world, job)
    tell(world, job, kept=1.0)
    assert gpus(world, job) == before


def test_no_other_worker_is_moved_before_the_tests_have_begun_anew() -> None:
    """One GPU at a time; and the status of a generation that a newer order replaces says nothing."""
    world = World({"s1": 6})
    job = running(world)
    tell(world, job)
    left, generation = gpus(world, job), world.job(job).newest.generation
    tell(world, job, victim=next(iter(world.roster(job)[1:2])))
    assert gpus(world, job) == left
    assert world.job(job).newest.generation == generation


def test_a_job_leaves_at_most_half_of_its_gpus() -> None:
    world = World({"s1": 8})
    job = running(world, 3)
    tell(world, job)
    world.settle(job)
    before = gpus(world, job)
    tell(world, job)
    assert gpus(world, job) == before
    world.pass_time(FIRST_SLOW_BACK_OFF_S)
    assert gpus(world, job) != before, "the time of the first is over"


# ----------------------------------------------------------------------------------------------------------- left out


@pytest.mark.parametrize("policy", sorted(set(NAMES) - PACKED - ALL_OR_NOTHING))
def test_a_job_that_is_faster_without_a_worker_does_without_its_gpu(policy: str) -> None:
    world = World({"s1": 3}, policy=policy)
    job = running(world)
    before = gpus(world, job)
    slow = tell(world, job, without=1.5)
    world.settle(job)
    assert gpus(world, job) == before - {slow}
    assert "the job goes on without it" in told(world, job)[0]
    world.pass_time(60.0)
    assert gpus(world, job) == before - {slow}
    reasons = world.ask(GetJob(job=job, explain=True)).explanation.reasons
    assert any(f"does not use {slow} for 8m" in reason for reason in reasons), reasons
    trouble = server(world, "s1").trouble
    assert trouble == f"GPU {slow.index} is slow for {job} (8.0 times as long as other GPUs, 22 samples)"


@pytest.mark.parametrize("policy", sorted(ALL_OR_NOTHING))
def test_a_job_keeps_all_its_gpus_under_a_policy_that_gives_all_or_nothing(policy: str) -> None:
    world = World({"s1": 3}, policy=policy)
    job = running(world)
    before = gpus(world, job)
    tell(world, job, without=1.5)
    world.pass_time(30.0)
    assert gpus(world, job) == before
    assert told(world, job) == []


def test_the_gpu_that_a_job_does_without_serves_others() -> None:
    world = World({"s1": 3})
    job = running(world)
    slow = tell(world, job, without=1.5)
    world.settle(job)
    other = running(world, 1, BOB)
    assert gpus(world, other) == {slow}
    assert len(gpus(world, job)) == 2


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_job_that_does_without_a_gpu_keeps_its_others_where_another_job_grows(number: int) -> None:
    world = World({"s1": 5})
    job, growing = running(world, 3), world.submit(job_spec(low=1, high=4, name="growing"), who=BOB).id
    world.settle(growing)
    before, others, victim = gpus(world, job), gpus(world, growing), world.roster(job)[number]
    assert (len(before), len(others)) == (3, 2)
    slow = tell(world, job, victim=victim, without=1.5)
    assert gpus(world, job) == before - {slow}
    assert gpus(world, growing) == others | {slow}
    world.settle(job)
    world.settle(growing)
    world.restart()
    world.pass_time(20.0)
    assert gpus(world, job) == before - {slow}, "by the policy's count it would have three of the five"
    assert gpus(world, growing) == others | {slow}
    for worker in world.running(growing):
        world.report(worker, WorkerPhase.FINISHED, world.job(growing).newest.generation, 60)
        world.exit(worker, 0)
    world.pass_time(2.0)
    assert len(gpus(world, job)) == 3
    assert slow not in gpus(world, job)


@pytest.mark.parametrize("busy", [False, True])
def test_an_idle_gpu_is_preferred_to_doing_without(busy: bool) -> None:
    world = World({"s1": 4})
    job = running(world)
    if busy:
        running(world, 1, BOB)
    slow = tell(world, job, without=1.5)
    assert slow not in gpus(world, job)
    assert len(gpus(world, job)) == (2 if busy else 3)


@pytest.mark.parametrize(
    ("servers", "changes", "stages"),
    [
        ({"s1": 3}, {"low": 3}, Stages()),
        ({"s1": 2, "s2": 2}, {"low": 2, "share": 4, "gpus_per_server": 2}, Stages()),
        ({"s1": 4}, {"share": 4}, Stages(packing=True)),
    ],
    ids=["its minimum", "whole servers", "packed shares"],
)
def test_a_job_keeps(servers: dict[str, int], changes: dict[str, Any], stages: Stages) -> None:
    world = World(servers, stages=stages)
    job = running(world, **changes)
    before = gpus(world, job)
    tell(world, job, without=1.5)
    assert gpus(world, job) == before
    assert told(world, job) == []


def test_a_job_keeps_a_share_set_by_hand() -> None:
    world = World({"s1": 3})
    job = running(world)
    world.ask(Scale(job=job, share=3))
    before = gpus(world, job)
    tell(world, job, without=1.5)
    assert gpus(world, job) == before
    world.ask(Scale(job=job, share=None))
    world.pass_time(2.0)
    assert len(gpus(world, job)) == 2


def test_a_job_that_becomes_slower_without_the_gpu_uses_it_again_and_keeps_it() -> None:
    world = World({"s1": 3})
    job = running(world)
    before = gpus(world, job)
    slow = tell(world, job, without=1.5)
    world.settle(job)
    measure(world, job, 1.1 * STEP_S)
    assert gpus(world, job) == before
    assert told(world, job)[-1] == f"is slower without {slow} (steps take 440 ms, 400 ms before), and uses it again"
    world.settle(job)
    tell(world, job, without=1.5)
    assert gpus(world, job) == before
    assert [one.state for one in world.job(job).record.slow] == [SlowGpuState.KEPT]


def test_a_job_that_is_faster_without_the_gpu_says_by_how_much() -> None:
    world = World({"s1": 3})
    job = running(world)
    slow = tell(world, job, without=1.5)
    world.settle(job)
    measure(world, job, 0.25)
    assert slow not in gpus(world, job)
    reasons = world.ask(GetJob(job=job, explain=True)).explanation.reasons
    assert any(reason.endswith("; steps took 400 ms, and take 250 ms") for reason in reasons), reasons


# ----------------------------------------------------------------------------------------------------------- back again


def test_a_gpu_is_tried_again_and_left_for_longer_if_it_is_still_slow() -> None:
    world = World({"s1": 3})
    job = running(world)
    before = gpus(world, job)
    slow = tell(world, job, without=1.5)
    world.settle(job)
    world.pass_time(FIRST_SLOW_BACK_OFF_S - 60.0)
    assert slow not in gpus(world, job)
    world.pass_time(70.0)
    assert gpus(world, job) == before
    assert told(world, job)[-1] == f"may use {slow} again: its time is over"
    world.settle(job)
    victim = next(one.worker for one in world.job(job).newest.roster.members if one.gpu == slow)
    tell(world, job, victim=victim, without=1.5)
    world.settle(job)
    assert slow not in gpus(world, job)
    assert f"leaves {slow} for 20m00s" in told(world, job)[-1]
    assert len(world.job(job).record.slow) == 1


def test_a_gpu_is_used_again_when_what_its_agent_noted_is_over() -> None:
    world = World({"s1": 3})
    job = running(world)
    before = gpus(world, job)
    hot = Trouble(gpu=2, code="throttled", severity=Severity.NOTE, text="it is slowed down at 90 C", since_s=world.now)
    world.trouble("s1", hot)
    victim = next(one.worker for one in world.job(job).newest.roster.members if one.gpu.index == 2)
    slow = tell(world, job, victim=victim, without=1.5)
    world.settle(job)
    assert slow not in gpus(world, job)
    assert "22 samples, it is slowed down at 90 C)" in server(world, "s1").trouble
    world.trouble("s1", replace(hot, text="it is slowed down at 88 C"))
    assert slow not in gpus(world, job)
    world.trouble("s1")
    world.pass_time(2.0)
    assert gpus(world, job) == before
    assert server(world, "s1").trouble == ""


def test_an_operator_who_trusts_a_gpu_ends_what_was_found_of_it() -> None:
    world = World({"s1": 3})
    job = running(world)
    before = gpus(world, job)
    slow = tell(world, job, without=1.5)
    world.settle(job)
    world.ask(UncordonServer(server=ServerId("s1"), gpu=(slow.index + 1) % 3, trust=True))
    assert slow not in gpus(world, job)
    world.ask(UncordonServer(server=ServerId("s1"), gpu=slow.index, trust=True))
    world.pass_time(2.0)
    assert gpus(world, job) == before
    assert server(world, "s1").trouble == ""


# ----------------------------------------------------------------------------------------------------------- recorded


@pytest.mark.parametrize("moment", ["before_record", "after_record"])
def test_a_controller_that_dies_as_it_takes_the_decision_takes_it_once(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World({"s1": 3})
    job = running(world)
    slow = GpuAddress(server=ServerId("s1"), index=-1)

    def dies() -> None:
        if world.job(job).record.slow:
            raise KeyboardInterrupt

    monkeypatch.setattr(world, moment, dies)
    with pytest.raises(KeyboardInterrupt):
        tell(world, job, without=1.5)
    monkeypatch.undo()
    world.restart()
    world.pass_time(15.0)
    world.settle(job)
    (entry,) = world.job(job).record.slow
    slow = entry.gpu
    assert slow not in gpus(world, job)
    assert len(gpus(world, job)) == 2
    assert len(told(world, job)) == 1


def test_the_next_controller_knows_what_was_found() -> None:
    world = World({"s1": 3})
    job = running(world)
    slow = tell(world, job, without=1.5)
    world.settle(job)
    before = world.machine.cluster
    world.restart()
    assert differences(before, world.machine.cluster) == ()
    world.pass_time(60.0)
    assert slow not in gpus(world, job)
    assert f"GPU {slow.index} is slow for {job}" in server(world, "s1").trouble
    world.pass_time(FIRST_SLOW_BACK_OFF_S)
    assert slow in gpus(world, job)


# ----------------------------------------------------------------------------------------------------------- whose fault


def on(world: Any, job: str, gpu: GpuAddress) -> str:
    """The job's worker on this GPU."""
    return str(next(one.worker for one in world.job(job).newest.roster.members if one.gpu == gpu))


def finds_slow(world: Any, who: Principal, gpu: GpuAddress) -> None:
    """A job of two GPUs finds this one slow, does without it, and goes on."""
    job = running(world, 2, who)
    tell(world, job, victim=on(world, job, gpu), without=1.5)
    assert gpu not in gpus(world, job)
    world.settle(job)


def test_jobs_of_several_owners_blame_a_gpu_and_one_owner_alone_does_not() -> None:
    world = World({"s1": 6})
    gpu = GpuAddress(server=ServerId("s1"), index=1)
    finds_slow(world, ALICE, gpu)
    finds_slow(world, ALICE, gpu)
    assert told(world, None) == []
    assert server(world, "s1").state.value == "alive"
    finds_slow(world, BOB, gpu)
    (event,) = told(world, None)
    assert event.startswith("s1:1 computes slowly in jobs of 2 users: digits-1 (8.0 times as long as other GPUs")
    assert server(world, "s1").barred == {}, "the operator decides"
