"""Requests of clients, and the answers."""

from __future__ import annotations

import pytest

from elasticd.controller.events import AgentMessage
from elasticd.protocol.messages import (
    EventKind,
    GetEvents,
    GetJob,
    GetLog,
    Log,
    LogPiece,
    ReadLog,
    Refused,
    Scale,
    Scaled,
    Submit,
    Submitted,
)
from elasticd.protocol.model import GpuRange, ServerId, WorkerId, WorkerPhase

from .world import World, job_spec, one_running

B = WorkerPhase.BROKEN


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


@pytest.mark.parametrize(("policy", "told"), [("max-min", False), ("elasticflow", True)])
def test_who_submits_with_a_priority_is_told_where_it_does_nothing(policy, told):
    world = World(policy=policy)
    answer = world.ask(Submit(spec=job_spec(priority=10)))
    assert [policy in note for note in answer.notes] == [True] * told
    assert world.ask(Submit(spec=job_spec("other"))).notes == ()


def test_scaling_to_the_present_share_names_the_present_generation():
    world = World()
    job = one_running(world, 2)
    assert world.ask(Scale(job=job.id, share=2)) == Scaled(job=job.id, generation=job.record.committed, share=2)


def test_a_job_is_found_by_its_name_while_that_is_unique():
    world = World({"s1": 4})
    first = world.submit(job_spec(high=1))
    assert world.ask(GetJob(job="digits")).job.job == first.id
    world.submit(job_spec(high=1))
    assert "name one of" in world.ask(GetJob(job="digits")).reason


def test_a_log_is_relayed_from_the_agent_and_refused_when_it_does_not_come():
    world = World()
    job = one_running(world)
    worker = next(iter(job.workers)).worker
    assert world.ask(GetLog(job=job.id, worker=worker), "log1") is None
    assert world.messages(ReadLog)[-1].request == "log1"
    piece = LogPiece(request="log1", data=b"line\n", next_offset=5, end=False)
    world.feed(AgentMessage(ServerId("s1"), piece))
    assert world.answers["log1"] == Log(data=b"line\n", next_offset=5, end=False)
    world.ask(GetLog(job=job.id, worker=worker), "log2")
    world.pass_time(6)
    assert isinstance(world.answers["log2"], Refused)
    assert world.ask(GetLog(job=job.id, worker=WorkerId("digits-1.77"))).bad_input


def test_events_are_given_in_order_after_a_number():
    world = World()
    job = one_running(world)
    events = world.ask(GetEvents(job=job.id)).events
    assert [event.kind for event in events][:2] == [EventKind.SUBMITTED, EventKind.ORDERED]
    later = world.ask(GetEvents(after=events[0].number, job=job.id)).events
    assert later == events[1:]
    assert isinstance(world.ask(Submit(spec=job_spec())), Submitted)
