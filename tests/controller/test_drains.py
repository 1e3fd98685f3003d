"""Cordons, drains and removals of servers by operators, and their effect on running jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasticd.controller.records import OVERRULED, OverruleRecord
from elasticd.protocol.messages import (
    CordonServer,
    EventKind,
    GetServers,
    RemoveServer,
    ServerCordoned,
    ServerRemoved,
    ServerUncordoned,
    ServerView,
    StartWorker,
    StopWorker,
    UncordonServer,
)
from elasticd.protocol.model import CordonKind, Fault, GpuAddress, JobPhase, ServerId, Severity, Trouble
from elasticd.protocol.principals import Principal, Role

from .world import World, job_spec, one_running

ALICE = Principal(role=Role.USER, name="alice", account="alice")
ROOT = Principal(role=Role.OPERATOR, name="root")


def cordon(world: Any, server: str, kind: CordonKind = CordonKind.CORDON, gpu: int | None = None, **more: Any) -> Any:
    return world.ask(CordonServer(server=ServerId(server), gpu=gpu, kind=kind, **more), who=ROOT)


def drain(world: Any, server: str, preempt: bool = False, **more: Any) -> Any:
    return cordon(world, server, CordonKind.DRAIN_BY_PREEMPTING if preempt else CordonKind.DRAIN, **more)


def uncordon(world: Any, server: str, **more: Any) -> Any:
    return world.ask(UncordonServer(server=ServerId(server), trust=False, **more), who=ROOT)


def view(world: Any, server: str) -> ServerView:
    (found,) = world.ask(GetServers(server=ServerId(server))).servers
    assert isinstance(found, ServerView)
    return found


def on(world: Any, job: Any) -> list[str]:
    """Servers of the job's newest roster."""
    newest = job.newest
    return sorted(str(member.gpu) for member in newest.roster.members) if newest is not None else []


def started_on(world: Any, server: str) -> list[str]:
    return [message.worker for to, message in world.sent if to == server and isinstance(message, StartWorker)]


def stays(world: Any, server: str) -> dict[str, tuple[bool, str]]:
    return {one.job: (one.stays, one.why) for one in view(world, server).still_there}


def other_of(world: Any, job: Any) -> tuple[str, str]:
    """The server where a job of one GPU runs, and the other one."""
    (gpu,) = on(world, job)
    here = gpu.partition(":")[0]
    return here, "s2" if here == "s1" else "s1"


# ------------------------------------------------------------------------------------------------------------------ cordons


def test_a_cordoned_server_takes_no_new_work_and_what_runs_there_goes_on():
    world = World({"s1": 2, "s2": 1})
    job = one_running(world, 2)
    assert on(world, job) == ["s1:0", "s1:1"]
    assert cordon(world, "s1", reason="new disk") == ServerCordoned(server=ServerId("s1"))
    assert not world.messages(StopWorker)
    assert on(world, job) == ["s1:0", "s1:1"]
    (told,) = view(world, "s1").cordons
    assert (told.kind, told.reason, told.by, told.gpu) == (CordonKind.CORDON, "new disk", "operator:root", None)
    assert told.since_s == pytest.approx(world.now, abs=1.0)
    assert view(world, "s1").trouble == "no new work here: cordoned by operator:root: new disk"
    assert not view(world, "s1").still_there, "nobody has asked it to leave"
    world.exit(world.roster(job.id)[1], -9)
    world.settle(job.id)
    assert "s1:1" not in on(world, job)
    assert EventKind.CORDONED in world.kinds()


def test_who_cordons_again_changes_nothing_but_what_he_says_anew():
    world = World({"s1": 1})
    cordon(world, "s1", reason="new disk")
    first = view(world, "s1").cordons
    world.now += 60
    cordon(world, "s1")
    cordon(world, "s1", reason="new disk")
    assert view(world, "s1").cordons == first
    assert world.kinds().count(EventKind.CORDONED) == 1
    drain(world, "s1")
    (told,) = view(world, "s1").cordons
    assert (told.kind, told.reason) == (CordonKind.DRAIN, "new disk")
    assert told.since_s > first[0].since_s
    cordon(world, "s1", reason="and a new fan")
    (told,) = view(world, "s1").cordons
    assert (told.kind, told.reason) == (CordonKind.CORDON, "and a new fan")


def test_who_uncordons_is_told_what_is_wrong_there_all_the_same():
    world = World({"s1": 2})
    cordon(world, "s1")
    cordon(world, "s1", gpu=1)
    bad = Trouble(gpu=0, severity=Severity.NO_NEW_WORK, code="xid-74", text="XID 74")
    world.trouble("s1", bad)
    assert uncordon(world, "s1", gpu=1).still == ("no new work on GPU 1: cordoned by operator:root",)
    answer = uncordon(world, "s1")
    assert isinstance(answer, ServerUncordoned)
    assert (answer.trusted, answer.still) == ((), ("no new work on GPU 0: XID 74",))
    trusting = world.ask(UncordonServer(server=ServerId("s1"), gpu=0, trust=True))
    assert (trusting.trusted, trusting.still) == (("xid-74: XID 74",), ())
    cordon(world, "s1")
    assert uncordon(world, "s1").still == (), "what an operator trusts is trusted after a cordon, too"
    before = world.kinds().count(EventKind.UNCORDONED)
    uncordon(world, "s1")
    assert world.kinds().count(EventKind.UNCORDONED) == before, "it was not cordoned"


def test_a_job_that_loses_its_worker_on_a_cordoned_server_begins_again_elsewhere():
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 1)
    here, there = other_of(world, job)
    cordon(world, here)
    world.exit(world.roster(job.id)[0], -9)
    world.pass_time(3)
    world.settle(job.id)
    assert on(world, job) == [f"{there}:0"]


@pytest.mark.parametrize("kind", [CordonKind.CORDON, CordonKind.DRAIN])
def test_a_script_that_fails_on_a_cordoned_server_fails_by_its_own_fault(kind: CordonKind):
    world = World({"s1": 2})
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id)
    cordon(world, "s1", kind)
    worker = world.roster(job.id)[0]
    world.exit(worker, 1, "exit code 1: ValueError: bad")
    (past,) = [entry for entry in job.record.past if entry.worker == worker]
    assert (past.fault, past.reason) == (Fault.SCRIPT, "exit code 1: ValueError: bad")


# ------------------------------------------------------------------------------------------------------------------- drains


def test_a_drained_server_is_left_by_migration_and_is_empty_then():
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 1)
    here, there = other_of(world, job)
    old = world.roster(job.id)[0]
    assert drain(world, here, reason="new disk").kind is CordonKind.DRAIN
    assert not world.messages(StopWorker), "it computes until the newcomer has the state"
    assert stays(world, here) == {job.id: (False, f"is being moved to {there}:0")}
    world.settle(job.id)
    assert on(world, job) == [f"{there}:0"]
    assert old not in world.running(job.id)
    assert (job.record.restarts, EventKind.LOST in world.kinds(job.id)) == (0, False)
    assert not view(world, here).still_there
    assert view(world, here).cordons[0].drained_s is not None
    told = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.DRAINED]
    assert told == [f"server {here} is drained: nothing runs there any more"]
    assert not started_on(world, here)
    assert [(act.act, act.text) for act in world.audits[-1:]] == [("drain server", "being drained: new disk")]


def test_a_job_whose_share_stays_is_moved_too_and_one_with_gpus_on_both_sides_keeps_those_elsewhere():
    world = World({"s1": 2, "s2": 4})
    job = world.submit(job_spec(low=4, high=4))
    world.settle(job.id)
    other = world.submit(job_spec("other", 1, 1))
    world.settle(other.id)
    here = on(world, other)[0].partition(":")[0]
    assert here == "s1"
    drain(world, "s2")
    world.settle(job.id)
    assert on(world, job) == ["s2:0", "s2:1", "s2:2", "s2:3"], "there is no room for it"
    world.submit(job_spec("third", 1, 1))
    drain(world, "s1")
    assert stays(world, "s1")["other-2"][0], "nothing takes new work any more"
    uncordon(world, "s1")
    uncordon(world, "s2")
    drain(world, "s1")
    world.settle(other.id)
    assert stays(world, "s1")["other-2"] == (True, "it needs at least 1 GPU, and those elsewhere are in use")


def test_a_job_that_fits_nowhere_else_goes_on_where_it_is_until_it_does():
    world = World({"s1": 2, "s2": 1})
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id)
    assert on(world, job) == ["s1:0", "s1:1"]
    world.sent.clear()
    drain(world, "s1")
    world.settle(job.id)
    assert not world.messages(StopWorker)
    assert job.record.phase is JobPhase.RUNNING
    assert stays(world, "s1") == {job.id: (True, "it needs at least 2 GPUs, and elsewhere 1 can be had")}
    assert EventKind.DRAINED not in world.kinds()
    world.restart()
    world.settle(job.id)
    job = world.job(job.id)
    assert stays(world, "s1")[job.id][0]
    add_server(world, "s3", 2)
    world.settle(job.id)
    assert not [gpu for gpu in on(world, job) if gpu.startswith("s1")]
    assert job.record.restarts == 0
    assert EventKind.DRAINED in world.kinds()


def test_who_drains_by_preempting_has_such_a_job_save_its_state_and_wait():
    world = World({"s1": 2, "s2": 1})
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id)
    drain(world, "s1")
    assert job.record.phase is JobPhase.RUNNING
    drain(world, "s1", preempt=True)
    stops = world.messages(StopWorker)
    assert {stop.save for stop in stops} == {True}
    assert stays(world, "s1") == {job.id: (False, "saves its state, and ends")}
    world.reap()
    assert (job.record.phase, job.record.restarts) == (JobPhase.PENDING, 0)
    assert EventKind.DRAINED in world.kinds()
    uncordon(world, "s1")
    world.settle(job.id)
    assert (job.record.phase, on(world, job)) == (JobPhase.RUNNING, ["s1:0", "s1:1"])


@pytest.mark.parametrize("policy", ["fifo", "max-min", "srtf", "afs-l", "elastic"])
def test_nobody_is_stopped_so_that_a_server_can_be_drained(policy: str):
    world = World({"s1": 1, "s2": 1}, policy=policy)
    first, second = (world.submit(job_spec(name, 1, 1)) for name in ("first", "second"))
    for job in (first, second):
        world.settle(job.id)
    before = [on(world, job) for job in (first, second)]
    for here in ("s1", "s2"):
        drain(world, here)
        for job in (first, second):
            world.settle(job.id)
        assert [on(world, job) for job in (first, second)] == before, here
        assert {job.record.phase for job in (first, second)} == {JobPhase.RUNNING}
        ((cannot, why),) = stays(world, here).values()
        assert cannot, why
        uncordon(world, here)
    assert EventKind.PREEMPTED not in world.kinds()


def test_jobs_shrink_to_make_room_for_one_that_has_to_leave():
    world = World({"s1": 2, "s2": 2})
    small = world.submit(job_spec("small", 1, 1))
    world.settle(small.id)
    large = world.submit(job_spec("large", 1, 3))
    for job in (small, large, small):
        world.settle(job.id)
    assert len(on(world, large)) == 3
    here = on(world, small)[0].partition(":")[0]
    drain(world, here)
    for _ in range(3):
        for job in (large, small):
            world.settle(job.id)
    assert not view(world, here).still_there, world.story()
    assert [len(on(world, job)) for job in (small, large)] == [1, 1]
    assert {job.record.restarts for job in (small, large)} == {0}
    assert EventKind.PREEMPTED not in world.kinds()


def test_a_share_set_by_hand_shrinks_with_the_cluster_and_grows_back():
    world = World({"s1": 2, "s2": 2})
    job = one_running(world, 4)
    drain(world, "s1")
    world.settle(job.id)
    assert on(world, job) == ["s2:0", "s2:1"]
    assert not view(world, "s1").still_there
    uncordon(world, "s1")
    world.settle(job.id)
    assert len(on(world, job)) == 4


@pytest.mark.parametrize("preempt", [False, True])
def test_a_gang_is_neither_moved_nor_stopped(preempt: bool):
    world = World({"s1": 2, "s2": 2})
    job = world.submit(job_spec("run", 2, 2, restarts=5))
    world.pass_time(2)
    here = on(world, job)[0].partition(":")[0]
    drain(world, here, preempt=preempt)
    world.pass_time(2)
    why = "a fixed gang of 2 GPUs cannot be moved; `elasticctl cancel` ends it"
    assert stays(world, here) == {job.id: (True, why)}
    assert job.record.phase is JobPhase.RUNNING
    assert not world.messages(StopWorker)
    for worker in world.roster(job.id):
        world.exit(worker, 0)
    assert job.record.phase is JobPhase.FINISHED
    assert view(world, here).cordons[0].drained_s is not None


def test_a_job_that_needs_a_type_of_gpu_says_so():
    gpu = {"s1": ("NVIDIA A100", 1 << 35), "s2": ("Tesla V100", 1 << 34)}
    world = World({"s1": 2, "s2": 2}, kinds=gpu)
    named = world.submit(job_spec("named", 1, 1, gpu_types=("A100",)))
    world.settle(named.id)
    began = world.submit(job_spec("began", 2, 2))
    world.settle(began.id)
    assert {on(world, began)[0][:2], on(world, named)[0][:2]} == {"s1", "s2"}
    drain(world, "s1")
    assert stays(world, "s1")[named.id] == (True, "it needs at least 1 A100, and elsewhere 0 can be had")
    uncordon(world, "s1")
    drain(world, "s2")
    why = "it needs at least 2 GPUs of the type that it began on, Tesla V100, and elsewhere 0 can be had"
    assert stays(world, "s2")[began.id] == (True, why)


def test_a_worker_that_was_to_start_on_a_drained_server_is_started_elsewhere():
    world = World({"s1": 1, "s2": 1})
    first = one_running(world, 1)
    here, there = other_of(world, first)
    second = world.submit(job_spec("second", 1, 1))
    drain(world, there)
    assert started_on(world, there) in ([], ["second-2.0"])
    world.settle(second.id)
    assert not world.machine.cluster.servers.usable(GpuAddress(server=ServerId(there), index=0))
    assert started_on(world, there) in ([], ["second-2.0"])
    assert not job_on(world, second, here)


def job_on(world: Any, job: Any, server: str) -> bool:
    return any(gpu.startswith(f"{server}:") for gpu in on(world, job))


def test_one_gpu_is_drained_and_the_others_of_its_server_are_not():
    world = World({"s1": 3})
    job = one_running(world, 2)
    first = on(world, job)[0]
    drain(world, "s1", gpu=int(first[-1]))
    world.settle(job.id)
    assert first not in on(world, job)
    assert len(on(world, job)) == 2
    told = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.DRAINED]
    assert told == [f"GPU {first} is drained: nothing runs there any more"]


def test_a_server_that_is_lost_while_it_is_drained_is_not_taken_for_empty():
    world = World({"s1": 2})
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id)
    drain(world, "s1")
    world.agents[ServerId("s1")].connected = False
    world.turn(11)
    assert not view(world, "s1").alive
    assert EventKind.DRAINED not in world.kinds()
    world.hello("s1")
    world.turn()
    assert view(world, "s1").still_there, "what it left is being stopped"
    world.reap()
    world.turn()
    assert not view(world, "s1").still_there
    assert EventKind.DRAINED in world.kinds()


# --------------------------------------------------------------------------------------------------------------- durability


@pytest.mark.parametrize("kind", list(CordonKind))
def test_what_operators_have_decided_outlasts_the_controller_and_the_servers_reboot(kind: CordonKind):
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 1)
    here, there = other_of(world, job)
    cordon(world, here, kind, reason="new disk")
    world.settle(job.id)
    if not kind.drains:
        world.exit(world.roster(job.id)[0], -9)
        world.pass_time(3)
        world.settle(job.id)
    assert on(world, job) == [f"{there}:0"]
    told = view(world, here).cordons
    world.sent.clear()
    agent = world.agents[ServerId(here)]
    agent.connected = False
    world.pass_time(20)
    assert not view(world, here).alive
    world.restart()
    agent.start, agent.received = agent.start + 1, 0
    agent.exited.clear()
    world.hello(here)
    world.turn()
    assert view(world, here).cordons == told
    waits = world.submit(job_spec("waits", 1, 1))
    world.pass_time(5)
    assert not started_on(world, here)
    assert waits.record.phase is JobPhase.PENDING
    uncordon(world, here)
    world.settle(waits.id)
    assert on(world, waits) == [f"{here}:0"]


def test_an_older_version_finds_a_drain_to_be_a_cordon():
    world = World({"s1": 1})
    drain(world, "s1", reason="new disk")
    record = msgspec.msgpack.decode(world.store[f"{OVERRULED}s1"])
    assert record["excluded"][0]["reason"] == "new disk"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=OverruleRecord).cordons[0].kind.drains
    del record["excluded"][0]["kind"]
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=OverruleRecord)
    assert old.cordons[0].kind is CordonKind.CORDON


# ----------------------------------------------------------------------------------------------------------------- removal


def add_server(world: Any, name: str, gpus: int) -> None:
    """A new server joins."""
    first = next(iter(world.agents.values()))
    slots = tuple(msgspec.structs.replace(first.server.gpus[0], index=index) for index in range(gpus))
    server = msgspec.structs.replace(first.server, server=ServerId(name), gpus=slots)
    world.agents[ServerId(name)] = type(first)(server)
    world.hello(name)
    world.turn()


def remove(world: Any, server: str, **more: Any) -> Any:
    return world.ask(RemoveServer(server=ServerId(server)), **more)


def test_a_server_is_not_removed_while_workers_are_there():
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 1)
    here, there = other_of(world, job)
    refused = remove(world, here)
    worker = world.roster(job.id)[0]
    drained = f"drain it first: `elasticctl drain {here}`"
    assert refused.reason == f"server {here} still has workers of jobs ({worker} on {here}:0): {drained}"
    drain(world, here)
    world.settle(job.id)
    assert isinstance(remove(world, here), ServerRemoved)
    assert [one.server.server for one in world.ask(GetServers()).servers] == [there]
    assert EventKind.SERVER_REMOVED in world.kinds()
    assert job.record.phase is JobPhase.RUNNING


def test_the_agent_of_a_removed_server_is_a_newcomer_when_it_is_started_again_and_not_before():
    world = World({"s1": 1, "s2": 1})
    cordon(world, "s2", reason="sold")
    remove(world, "s2", who=ROOT)
    agent = world.agents[ServerId("s2")]
    world.pass_time(3)
    for _ in range(2):
        world.hello("s2")
        assert "has been removed by operator:root while this agent ran" in agent.refused
        world.restart()
    assert [one.server.server for one in world.ask(GetServers()).servers] == ["s1"]
    agent.start, agent.hellos = agent.start + 1, 0
    world.hello("s2")
    world.turn()
    assert not view(world, "s2").cordons
    assert EventKind.SERVER_JOINED in world.kinds()[-3:]
    assert not [key for key in world.store if key.startswith("/removed/")]
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id)
    assert on(world, job) == ["s1:0", "s2:0"]


def test_another_agent_may_take_the_name_of_a_removed_server():
    world = World({"s1": 1, "s2": 1})
    agent = world.agents[ServerId("s2")]
    agent.identity, agent.start = "old", 7
    world.restart()
    remove(world, "s2")
    agent.identity, agent.start, agent.hellos = "new", 1, 0
    world.hello("s2")
    assert not agent.refused
    assert view(world, "s2").alive


def test_only_operators_decide_about_servers():
    world = World({"s1": 1})
    for request in (
        CordonServer(server=ServerId("s1")),
        CordonServer(server=ServerId("s1"), kind=CordonKind.DRAIN),
        UncordonServer(server=ServerId("s1")),
        RemoveServer(server=ServerId("s1")),
    ):
        assert world.ask(request, who=ALICE).not_allowed, request
    assert [line.act for line in world.audits] == ["cordon server", "drain server", "uncordon server", "remove server"]
    assert not any(line.done for line in world.audits)
    assert not view(world, "s1").cordons
