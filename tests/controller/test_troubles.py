"""GPUs in trouble: the controller starts nothing new there, moves jobs away, and obeys operators who overrule."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from elasticd.controller.events import AgentMessage
from elasticd.controller.reconcile.health import TRIES_ON_ONE_SERVER
from elasticd.controller.taints import MOST_OF_WHOLE
from elasticd.protocol.messages import (
    AgentHeartbeat,
    CordonServer,
    EventKind,
    GetJob,
    GetServers,
    Refused,
    RemoveServer,
    ServerCordoned,
    ServerState,
    ServerUncordoned,
    StartWorker,
    StopWorker,
    UncordonServer,
)
from elasticd.protocol.model import Fault, GpuAddress, JobPhase, ServerId, Severity, Trouble, WorkerPhase
from elasticd.protocol.principals import Principal, Role

from .world import World, job_spec, one_running

ALICE = Principal(role=Role.USER, name="alice", account="alice")


def trouble(gpu: int | None, severity: Severity = Severity.NO_NEW_WORK, code: str = "bad", **more: Any) -> Trouble:
    return Trouble(gpu=gpu, severity=severity, code=code, text=f"{code} is wrong", **more)


def on(world: World, job: str) -> list[str]:
    """Servers of the newest roster."""
    newest = world.job(job).newest
    return [str(member.gpu) for member in newest.roster.members] if newest is not None else []


def servers(world: World) -> dict[str, Any]:
    return {view.server.server: view for view in world.ask(GetServers()).servers}


def test_nothing_is_started_on_a_gpu_that_takes_no_new_work():
    world = World({"s1": 2})
    world.trouble("s1", trouble(0))
    job = world.submit(job_spec(high=2))
    assert on(world, job.id) == ["s1:1"]
    view = servers(world)["s1"]
    assert view.barred == {0: "bad is wrong"}
    assert view.state is ServerState.ALIVE
    assert view.trouble == "no new work on GPU 0: bad is wrong"
    world.settle(job.id)
    waits = world.submit(job_spec("waits", 2, 2))
    reason = world.ask(GetJob(job=waits.id)).job.reason
    assert reason == "waits for 2 GPUs: 1 of 2 takes no new work; s1: no new work on GPU 0: bad is wrong"


def test_a_server_that_has_no_gpu_says_why_also_to_who_waits():
    world = World({"s1": 0, "s2": 1})
    one_running(world, 1)
    world.trouble("s1", trouble(None, code="no-driver"))
    view = servers(world)["s1"]
    assert (view.state, view.trouble) == (ServerState.UNFIT, "it offers nothing: no-driver is wrong")
    world.submit(job_spec("waits", 1, 1))
    assert "s1: it offers nothing: no-driver is wrong" in world.ask(GetJob(job="waits")).job.reason


def test_what_runs_on_a_gpu_that_takes_no_new_work_goes_on_and_nobody_follows():
    world = World({"s1": 2})
    job = one_running(world, 2)
    world.trouble("s1", trouble(1))
    assert len(world.roster(job.id)) == 2
    assert not world.messages(StopWorker)
    other = world.submit(job_spec("other", 1, 1))
    world.settle(other.id)
    world.settle(job.id)
    assert not other.record.target, "the first one's GPUs are set by hand"
    world.exit(world.roster(job.id)[1], -9)
    world.settle(job.id)
    assert on(world, job.id) == ["s1:0"]
    world.trouble("s1")
    world.settle(job.id)
    assert len(world.roster(job.id)) == 2


@pytest.mark.parametrize("severity", [Severity.MOVE_AWAY, Severity.STOP])
def test_a_job_leaves_a_gpu_by_migration_while_its_worker_there_goes_on(severity: Severity):
    world = World({"s1": 1, "s2": 1})
    job = one_running(world, 1)
    old = world.roster(job.id)[0]
    bad, good = ("s1", "s2") if on(world, job.id) == ["s1:0"] else ("s2", "s1")
    world.trouble(bad, trouble(0, severity))
    assert not world.messages(StopWorker), "it computes until the newcomer has the state"
    assert "is being moved away" in world.ask(GetJob(job=job.id)).job.reason or world.messages(StartWorker)
    world.settle(job.id)
    assert on(world, job.id) == [f"{good}:0"]
    assert old not in world.running(job.id)
    assert job.record.restarts == 0
    assert EventKind.LOST not in world.kinds(job.id)


def test_a_job_of_several_gpus_that_has_no_other_one_shrinks():
    world = World({"s1": 2})
    job = one_running(world, 2)
    world.trouble("s1", trouble(0, Severity.MOVE_AWAY))
    world.settle(job.id)
    assert on(world, job.id) == ["s1:1"]
    assert (job.record.restarts, job.record.phase) == (0, JobPhase.RUNNING)


def test_a_job_that_would_be_left_with_nothing_goes_on_where_it_is_until_there_is_room():
    world = World({"s1": 2, "s2": 1})
    world.agents[ServerId("s2")].connected = False
    world.pass_time(11)
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id)
    world.sent.clear()
    world.trouble("s1", trouble(0, Severity.MOVE_AWAY))
    world.turn(5)
    world.hello("s1")
    world.turn()
    assert sorted(on(world, job.id)) == ["s1:0", "s1:1"]
    assert not world.messages(StopWorker)
    assert world.ask(GetJob(job=job.id)).job.reason == "goes on at s1:0 (bad is wrong): no other GPU can be had"
    world.hello("s2")
    world.settle(job.id)
    assert sorted(on(world, job.id)) == ["s1:1", "s2:0"]
    assert job.record.restarts == 0


def test_a_job_on_a_gpu_that_computes_wrongly_is_stopped_where_there_is_no_other():
    world = World({"s1": 2})
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id)
    world.trouble("s1", trouble(0, Severity.STOP))
    assert EventKind.PREEMPTED in world.kinds(job.id)
    world.reap()
    assert job.record.phase is JobPhase.PENDING
    assert "no new work on GPU 0" in world.ask(GetJob(job=job.id)).job.reason
    world.trouble("s1")
    world.settle(job.id)
    assert job.record.phase is JobPhase.RUNNING


def test_a_worker_that_dies_with_its_gpu_does_not_fail_its_job():
    world = World({"s1": 1, "s2": 1})
    world.agents[ServerId("s2")].connected = False
    job = world.submit(job_spec(low=1, high=1))
    world.arrive(job.id)
    (worker,) = world.running(job.id)
    world.trouble("s1", trouble(0, Severity.STOP, "xid-79"))
    if worker in world.running(job.id) and not world.find(worker)[1].stopping:
        world.exit(worker, 1, "exit code 1: CUDA error")
    assert job.record.phase is not JobPhase.FAILED


def test_a_script_that_ends_by_its_gpu_counts_against_neither_job_nor_server():
    world = World({"s1": 2})
    job = world.submit(job_spec(low=1, high=1))
    (worker,) = world.running(job.id)
    gpu = next(iter(job.workers)).gpu
    agent = world.agents[ServerId("s1")]
    agent.troubles = (trouble(gpu.index, Severity.NO_NEW_WORK, "memory-held"),)
    world.trouble("s1", *agent.troubles)
    world.exit(worker, None, "cannot be started: GPU 0 has no memory free", fault=Fault.SERVER)
    assert world.machine.cluster.servers.fit(ServerId("s1"))
    assert EventKind.SERVER_UNFIT not in world.kinds()
    world.pass_time(5)
    world.settle(job.id)
    assert job.record.phase is JobPhase.RUNNING
    assert on(world, job.id) != [str(gpu)]


def test_a_trouble_of_the_whole_server_bars_all_its_gpus():
    world = World({"s1": 2, "s2": 1})
    world.trouble("s1", trouble(None, code="disk-full-state"))
    job = world.submit(job_spec(high=4))
    assert on(world, job.id) == ["s2:0"]
    view = servers(world)["s1"]
    assert (view.state, set(view.barred)) == (ServerState.UNFIT, {0, 1})
    assert view.trouble == "no new work here: disk-full-state is wrong"
    assert EventKind.TROUBLE in world.kinds()
    world.trouble("s1")
    assert EventKind.RECOVERED in world.kinds()
    world.settle(job.id)
    assert len(on(world, job.id)) == 3


def test_what_is_merely_noted_bars_nothing_and_is_shown():
    world = World({"s1": 1})
    world.trouble("s1", trouble(0, Severity.NOTE, "xid-31"))
    job = world.submit()
    assert on(world, job.id) == ["s1:0"]
    assert servers(world)["s1"].trouble == "GPU 0: xid-31 is wrong"
    assert EventKind.TROUBLE not in world.kinds()


def test_a_cordoned_gpu_takes_no_new_work_also_under_the_next_controller():
    world = World({"s1": 2})
    assert world.ask(CordonServer(server="s1", gpu=1, reason="loud fan")) == ServerCordoned(server="s1", gpu=1)
    world.restart()
    job = world.submit(job_spec(high=2))
    assert on(world, job.id) == ["s1:0"]
    assert servers(world)["s1"].barred == {1: "cordoned by operator:local: loud fan"}
    assert world.ask(UncordonServer(server="s1", gpu=1)) == ServerUncordoned(server="s1", gpu=1)
    world.restart()
    world.settle(job.id)
    assert len(on(world, job.id)) == 2
    assert [(act.act, act.of) for act in world.audits[-3:] if "cordon" in act.act] == [
        ("cordon server", "s1:1"),
        ("uncordon server", "s1:1"),
    ]


def test_a_trusted_trouble_bars_no_more_until_it_comes_anew():
    world = World({"s1": 1})
    world.trouble("s1", trouble(0, since_s=5.0))
    answer = world.ask(UncordonServer(server="s1", gpu=0))
    assert answer.trusted == ("bad: bad is wrong",)
    job = world.submit(job_spec(high=1))
    assert on(world, job.id) == ["s1:0"]
    assert world.messages(StartWorker)[-1].trusted == ("bad",)
    assert servers(world)["s1"].trouble.endswith("(an operator trusts it)")
    world.trouble("s1", trouble(0, since_s=6.0))
    assert world.machine.cluster.servers.taint(GpuAddress(server=ServerId("s1"), index=0)) is not None
    world.ask(UncordonServer(server="s1"))
    world.trouble("s1", trouble(0, since_s=6.0), trouble(None, code="disk-full-logs"))
    assert servers(world)["s1"].barred == {0: "disk-full-logs is wrong"}


def test_a_gpu_or_server_that_is_not_there_cannot_be_cordoned_and_users_may_not():
    world = World({"s1": 1})
    for request in (CordonServer(server="s9"), CordonServer(server="s1", gpu=4), UncordonServer(server="s1", gpu=4)):
        answer = world.ask(request)
        assert isinstance(answer, Refused)
        assert answer.bad_input
    for kind in (CordonServer, UncordonServer):
        assert world.ask(kind(server="s1"), who=ALICE).not_allowed
    assert not servers(world)["s1"].barred


def test_what_operators_said_of_a_server_is_forgotten_with_it():
    world = World({"s1": 1, "s2": 1})
    world.ask(CordonServer(server="s2"))
    world.agents[ServerId("s2")].connected = False
    world.pass_time(11)
    world.ask(RemoveServer(server="s2"))
    world.restart()
    world.hello("s2")
    world.turn()
    assert not servers(world)["s2"].barred


def test_a_gpu_where_jobs_fail_at_their_start_while_others_work_is_left_alone():
    world = World({"s1": 3})
    one_running(world, 1)
    first = world.submit(job_spec("first", 1, 1))
    (worker,) = world.running(first.id)
    gpu = next(iter(first.workers)).gpu
    world.exit(worker, 1, "exit code 1: CUDA initialization error")
    assert first.record.phase is JobPhase.FAILED, "nothing is known of the GPU yet"
    second = world.submit(job_spec("second", 1, 1))
    (worker,) = world.running(second.id)
    assert next(iter(second.workers)).gpu == gpu
    world.exit(worker, 1, "exit code 1: CUDA initialization error")
    assert second.record.phase is not JobPhase.FAILED
    assert world.machine.cluster.servers.fit(ServerId("s1"))
    assert "workers fail at their start there" in servers(world)["s1"].barred[gpu.index]
    world.pass_time(5)
    world.settle(second.id)
    assert second.record.phase is JobPhase.RUNNING
    assert next(iter(second.workers)).gpu != gpu


def test_scripts_of_one_user_that_fail_take_no_gpu_from_other_users():
    alice, bob = (Principal(role=Role.USER, name=name, account=name) for name in ("alice", "bob"))
    world = World({"s1": 3})
    job = world.submit(job_spec("works", 1, 1), who=bob)
    world.settle(job.id)
    for number in range(4):
        failing = world.submit(job_spec(f"wrong{number}", 1, 1), who=alice)
        (worker,) = world.running(failing.id)
        gpu = next(iter(failing.workers)).gpu
        world.exit(worker, 1, "exit code 1: ValueError")
        assert failing.record.phase is JobPhase.FAILED
        assert not servers(world)["s1"].barred
    second = world.submit(job_spec("second", 1, 1), who=bob)
    (worker,) = world.running(second.id)
    assert next(iter(second.workers)).gpu == gpu
    world.exit(worker, 1, "exit code 1: CUDA initialization error")
    assert gpu.index in servers(world)["s1"].barred, "two users agree"
    assert second.record.phase is not JobPhase.FAILED


def with_one_at_its_loop(world: Any, who: Principal, gpus: int = 2) -> tuple[Any, GpuAddress]:
    """A new job with one worker at its training loop, and the GPU where the last one fails."""
    job = world.submit(job_spec("by-rank", gpus, gpus), who=who)
    first, *_, last = world.running(job.id)
    world.report(first, WorkerPhase.READY)
    gpu = next(entry.gpu for entry in job.workers if entry.worker == last)
    world.exit(last, 1, "exit code 1: ValueError: rank 1")
    return job, gpu


def test_a_job_alone_takes_no_gpu_from_other_users_and_is_tried_on_other_gpus() -> None:
    alice, bob = (Principal(role=Role.USER, name=name, account=name) for name in ("alice", "bob"))
    world = World({"s1": 4})
    world.settle(world.submit(job_spec("works", 1, 1), who=bob).id)
    job, gpu = with_one_at_its_loop(world, alice)
    assert not servers(world)["s1"].barred
    assert not job.final, "another GPU is tried first"
    world.pass_time(2)
    world.settle(job.id)
    assert job.record.phase is JobPhase.RUNNING
    assert str(gpu) not in on(world, job.id)
    other = world.submit(job_spec("other", 1, 1), who=bob)
    world.settle(other.id)
    assert on(world, other.id) == [str(gpu)], "it is there for others"


def test_a_job_that_fails_on_the_same_gpu_again_and_again_fails_for_good_and_bars_nothing() -> None:
    alice, bob = (Principal(role=Role.USER, name=name, account=name) for name in ("alice", "bob"))
    world = World({"s1": 3})
    world.settle(world.submit(job_spec("works", 1, 1), who=bob).id)
    job, _ = with_one_at_its_loop(world, alice)
    failures = 1
    for _ in range(20):
        assert not servers(world)["s1"].barred
        for entry in job.workers:
            if entry.stopping:
                world.exit(entry.worker, -15)
        world.pass_time(60)
        running = world.running(job.id)
        if len(running) > 1:
            world.report(running[0], WorkerPhase.READY)
            world.exit(running[-1], 1, "exit code 1: ValueError: rank 1")
            failures += 1
    assert failures == TRIES_ON_ONE_SERVER + 1
    assert job.record.phase is JobPhase.FAILED
    assert "rank 1" in job.record.reason
    assert not servers(world)["s1"].barred


def test_a_gpu_that_fails_a_job_is_left_alone_where_nobody_else_has_jobs() -> None:
    world = World({"s1": 3})
    _, gpu = with_one_at_its_loop(world, Principal(role=Role.USER, name="alice", account="alice"))
    assert gpu.index in servers(world)["s1"].barred


def test_an_agent_that_tells_nonsense_bars_nothing_else():
    world = World({"s1": 1})
    odd = [trouble(7), trouble(0, code=""), trouble(0, code="x" * 100), trouble(-1), trouble(0, code="a\nb")]
    agent = world.agents[ServerId("s1")]
    beat = AgentHeartbeat(server=ServerId("s1"), troubles=tuple(odd * 1000))
    world.feed(AgentMessage(ServerId("s1"), beat, agent.identity))
    world.turn()
    assert not servers(world)["s1"].barred
    job = world.submit()
    world.report(world.running(job.id)[0], WorkerPhase.READY)
    assert on(world, job.id) == ["s1:0"]


def test_an_agent_whose_gpu_comes_and_goes_fills_nobodys_history():
    world = World({"s1": 1})
    for turn in range(200):
        world.trouble("s1", *([trouble(0, since_s=float(turn))] if turn % 2 else []))
    assert len([kind for kind in world.kinds() if kind in (EventKind.TROUBLE, EventKind.RECOVERED)]) < 30


def test_a_start_is_not_told_again_where_its_gpu_takes_no_new_work_any_more():
    world = World({"s1": 2})
    agent = world.agents[ServerId("s1")]
    agent.connected = False
    job = world.submit(job_spec(low=1, high=1))
    gpu = next(iter(job.workers)).gpu
    world.ask(CordonServer(server="s1", gpu=gpu.index))
    world.sent.clear()
    world.hello("s1")
    world.turn()
    assert [start.gpu for start in world.messages(StartWorker)] != [gpu.index]
    world.pass_time(20)
    world.settle(job.id)
    assert on(world, job.id) == [f"s1:{1 - gpu.index}"]
    assert gpu.index not in [start.gpu for start in world.messages(StartWorker)]


@pytest.mark.parametrize("gpu", [0, 1])
@pytest.mark.parametrize("policy", ["max-min", "elastic-tiresias", "afs-l", "gandiva"])
def test_who_gives_gpus_up_keeps_the_one_that_nobody_else_may_have(gpu: int, policy: str):
    world = World({"s1": 2}, policy=policy)
    job = world.submit(job_spec(low=1, high=2))
    world.settle(job.id)
    assert len(world.roster(job.id)) == 2
    world.trouble("s1", trouble(gpu))
    other = world.submit(job_spec("other", 1, 1))
    for _ in range(4):
        world.pass_time(30)
        world.settle(job.id)
        world.settle(other.id)
    held = {str(entry.gpu) for entry in other.workers}
    assert f"s1:{gpu}" not in held
    if policy == "max-min":
        assert (held, set(on(world, job.id))) == ({f"s1:{1 - gpu}"}, {f"s1:{gpu}"})


def test_a_sentence_of_an_agent_has_one_line():
    world = World({"s1": 1})
    world.trouble("s1", Trouble(gpu=0, severity=Severity.NO_NEW_WORK, code="bad", text="one\ntwo"))
    assert servers(world)["s1"].barred == {0: "one two"}


def test_an_agent_that_tells_of_very_much_keeps_nobody_from_reading_the_rest():
    world = World({"s1": 64, "s2": 1})
    many = [trouble(None, code=f"whole-{number}") for number in range(250)]
    many += [trouble(0, code=f"first-{number}") for number in range(250)]
    world.trouble("s1", *(replace(one, text=one.text.ljust(500, "x")) for one in many))
    world.submit(job_spec("waits", 2, 2))
    assert len(world.ask(GetJob(job="waits")).job.reason) < 2000
    view = servers(world)["s1"]
    assert len(view.barred) == 64
    assert all(text.endswith("more") and len(text) < 5000 for text in view.barred.values())
    assert sum(one.gpu is None for one in view.troubles) == MOST_OF_WHOLE


def test_of_very_many_servers_in_trouble_the_first_are_told():
    world = World({f"s{number:02}": 1 for number in range(12)})
    for number in range(12):
        world.trouble(f"s{number:02}", trouble(0))
    world.submit(job_spec("waits", 1, 1))
    reason = world.ask(GetJob(job="waits")).job.reason
    assert reason.count("no new work here") == 8
    assert reason.endswith("s07: no new work here: bad is wrong; and 4 more servers")
