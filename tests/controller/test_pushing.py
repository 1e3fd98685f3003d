"""A fixed share takes GPUs from other jobs: the answer names these jobs, and their views name the cause."""

from __future__ import annotations

import msgspec
import pytest

from elasticd.controller.state import jobs
from elasticd.protocol.messages import EventKind, GetJob, JobFound, Scale, Scaled
from elasticd.protocol.model import GpuRange, JobId

from .world import World, job_spec


def two_running(world: World) -> tuple[JobId, JobId]:
    first, second = (world.submit(job_spec(name, low=1, high=4)).id for name in ("first", "second"))
    world.settle(first)
    world.settle(second)
    return first, second


def reason(world: World, job: JobId) -> str:
    answer = world.ask(GetJob(job=job))
    assert isinstance(answer, JobFound)
    return answer.job.reason


def test_whom_a_share_set_by_hand_pushes_out_is_told_with_the_answer():
    world = World()
    first, second = two_running(world)
    answer = world.ask(Scale(job=first, share=4))
    assert isinstance(answer, Scaled)
    assert [(one.job, one.before_gpus, one.after_gpus) for one in answer.pushed] == [(second, 2, 0)]
    assert f"{first} has 4 GPUs by hand" in answer.pushed[0].reason
    assert f"{first} has 4 GPUs by hand" in reason(world, second)
    texts = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.PREEMPTED]
    assert texts == [f"gives all its GPUs back for {first}, which got more by hand; its state is saved first"]
    world.settle(first)
    assert reason(world, second) == f"asks for at least 1 GPU, 0 of 4 are left: {first} has 4 GPUs by hand"


def test_one_that_only_shrinks_is_told_too_and_nobody_where_nobody_loses():
    world = World()
    first, second = two_running(world)
    answer = world.ask(Scale(job=first, share=3))
    assert isinstance(answer, Scaled)
    assert [(one.job, one.before_gpus, one.after_gpus) for one in answer.pushed] == [(second, 2, 1)]
    world.settle(first)
    world.settle(second)
    assert f"{first} has 3 GPUs by hand" in reason(world, second)
    back = world.ask(Scale(job=first, share=None))
    assert isinstance(back, Scaled)
    assert back.pushed == ()
    assert "by hand" not in reason(world, second)


def test_with_very_many_jobs_it_is_told_with_the_answer_that_comes_later(monkeypatch: pytest.MonkeyPatch):
    world = World()
    first, second = two_running(world)
    monkeypatch.setattr(jobs, "JOBS_DECIDED_AT_ONCE", 0)
    monkeypatch.setattr(jobs, "DECISION_INTERVAL_PER_JOB_S", 1.0)
    world.ask(Scale(job=first, share=4))
    world.pass_time(5.0)
    (answer,) = [answer for answer in world.answers.values() if isinstance(answer, Scaled)]
    assert [one.job for one in answer.pushed] == [second]


def test_an_earlier_controllers_answer_names_nobody():
    data = msgspec.msgpack.encode({"type": "Scaled", "job": "a-1", "generation": 3, "share": 2})
    assert msgspec.msgpack.decode(data, type=Scaled).pushed == ()
    assert GpuRange(min=1, max=2).max == 2
