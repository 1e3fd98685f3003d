"""Servers that fall silent and return, and their reports of workers."""

from __future__ import annotations

import msgspec

from elasticd.controller.events import AgentMessage
from elasticd.controller.inbound.joining import stale
from elasticd.protocol.messages import (
    Acknowledged,
    AgentHeartbeat,
    EventKind,
    StartWorker,
    StopWorker,
)
from elasticd.protocol.model import ServerId, WorkerId, WorkerPhase

from .world import World, job_spec, one_running


def test_a_silent_server_is_lost_and_its_stale_workers_are_stopped_when_it_is_back():
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 2)
    first, second = (member.worker for member in job.newest.roster.members)
    gone = job.newest.roster.members[1].gpu.server
    world.agents[gone].connected = False
    world.pass_time(11)
    assert EventKind.SERVER_LOST in world.kinds()
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
    generation, count = job.record.generation, len(world.messages(StartWorker))
    world.hello("s1")
    world.turn()
    assert (job.record.generation, len(world.messages(StartWorker))) == (generation, count)
    assert world.kinds(job.id)[-1] != EventKind.LOST


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
    world.feed(AgentMessage(ServerId("s1"), AgentHeartbeat(server=ServerId("s1"))))
    acknowledged = world.messages(Acknowledged)[-1]
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


def test_a_hello_without_a_number_is_none_of_the_past():
    world = World({"s1": 1})
    last = world.say_hello(world.agents["s1"])
    known = world.machine.cluster.servers.sessions["s1"]
    assert stale(known, last)
    assert not stale(known, msgspec.structs.replace(last, number=last.number + 1))
    assert not stale(known, msgspec.structs.replace(last, number=0)), "agents of the first version count none"
