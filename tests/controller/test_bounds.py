"""No queue and no table of the controller grows without bound, whatever its peers send."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from elasticd.controller import sessions
from elasticd.controller.events import AgentMessage, SendAgent, Warn
from elasticd.controller.inbound import messages
from elasticd.controller.jobs import reported
from elasticd.controller.reconcile import orders
from elasticd.controller.requests import acts, pending
from elasticd.controller.state import history
from elasticd.controller.state import jobs as jobs_state
from elasticd.protocol.messages import (
    AgentHeartbeat,
    AgentHello,
    Cancel,
    GetLog,
    LocalWorker,
    Ping,
    Pong,
    Refused,
    Scale,
    Scaled,
    SetPolicy,
    StopWorker,
    Submit,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import Gpu, GpuKind, JobId, Server, ServerId, Steady, WorkerId, WorkerPhase

from .world import World, job_spec

S1 = ServerId("s1")


def training(gpus: int = 4) -> tuple[Any, str]:
    world = World({"s1": gpus})
    job = world.submit(job_spec(low=1, high=gpus)).id
    world.settle(job)
    return world, job


def test_the_committed_order_is_kept_however_many_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "KEPT_ORDERS", 8)
    world, job = training()
    committed = world.job(job).record.committed
    for number in range(40):
        world.ask(Scale(job=job, share=1 + number % 3))
        world.arrive(job)
        assert len(world.job(job).record.orders) <= 8
        assert world.job(job).order(committed) is not None, "what trains is known"
        assert world.job(job).share_gpus == 4
    world.settle(job)
    assert world.job(job).record.committed == world.job(job).record.generation


def test_too_many_readers_of_logs_are_refused_and_later_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "MAX_PENDING_LOGS", 3)
    world, job = training(1)
    worker = WorkerId(world.running(job)[0])
    for number in range(3):
        assert world.ask(GetLog(job=job, worker=worker), f"log-{number}") is None
    refused = world.ask(GetLog(job=job, worker=worker), "log-3")
    assert isinstance(refused, Refused)
    assert "pieces of logs are being read already" in refused.reason
    assert world.ask(GetLog(job=job, worker=worker), "log-2") is None, "a repetition is none more"
    world.pass_time(6.0)
    assert world.machine.cluster.clients.pending_logs == {}
    assert world.ask(GetLog(job=job, worker=worker), "log-4") is None


def test_an_offset_that_no_file_has_is_refused() -> None:
    world, job = training(1)
    for offset in (-(2**63), 2**63):
        answer = world.ask(GetLog(job=job, worker=WorkerId(world.running(job)[0]), offset=offset))
        assert isinstance(answer, Refused)
        assert answer.bad_input


def test_an_agent_that_reports_processes_without_end_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_ORPHANS", 5)
    world, job = training(1)
    status = world.find(world.running(job)[0])[1].status
    warned = 0
    for number in range(20):
        strange = type(status)(
            job=status.job, worker=WorkerId(f"{job}.{1000 + number}"), pid=1, address="", phase=WorkerPhase.READY,
            generation=0, order=0, floor=0, applied=None, sequence=1,
        )  # fmt: skip
        actions = world.machine.handle(world.now, AgentMessage(S1, WorkerReport(status=strange)))
        warned += sum(isinstance(action, Warn) for action in actions)
    assert len(world.machine.cluster.servers.sessions[S1].orphans) <= 5
    assert warned > 0


def test_a_process_that_nobody_wants_is_told_to_end_again_and_again_until_it_has_ended() -> None:
    world, job = training(1)
    status = world.find(world.running(job)[0])[1].status
    orphan = status.worker
    world.exit(orphan, -9)
    strange = replace(status, sequence=status.sequence + 1)  # late and duplicated

    def told(message: Any) -> int:
        """Number of orders to stop the worker that follow from this message of the agent."""
        actions = world.machine.handle(world.now, AgentMessage(S1, message))
        sent = [action.message for action in actions if isinstance(action, SendAgent)]
        return sum(isinstance(stop, StopWorker) and stop.worker == orphan for stop in sent)

    assert told(WorkerReport(status=strange)) == 1
    stops = []
    for _ in range(25):
        world.now += 1.0
        stops.append(told(AgentHeartbeat(server=S1)))
    assert sum(stops) == 2, "the agent has heard of none of them, or its answers were lost"
    told(WorkerExit(job=status.job, worker=orphan, exit_code=None, reason="not here"))
    world.now += 20.0
    assert told(AgentHeartbeat(server=S1)) == 0
    assert not world.machine.cluster.servers.sessions[S1].orphans


def test_servers_without_end_are_not_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_SERVERS", 3)
    world = World({"s1": 1})
    for number in range(2, 9):
        server = Server(server=ServerId(f"s{number}"), address="", gpus=())
        hello = AgentHello(server=server, incarnation="a", workers=(), starting=(), exited=())
        world.machine.handle(world.now, AgentMessage(server.server, hello))
    assert len(world.machine.cluster.servers.sessions) == 3


def test_a_server_of_another_cluster_tells_of_no_ends_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_ENDED", 3)
    world = World({"s1": 1})
    server = Server(server=ServerId("s9"), address="", gpus=())
    hello = AgentHello(
        server=server,
        incarnation="a",
        workers=(),
        starting=(WorkerId("x-1.0"),),
        exited=(),
        cluster="another",
        agent="a9",
    )
    world.machine.handle(world.now, AgentMessage(server.server, hello, "a9"))
    for number in range(100):
        ended = WorkerExit(job=JobId("x-1"), worker=WorkerId(f"x-1.{number}"), exit_code=0, reason="")
        world.machine.handle(world.now, AgentMessage(server.server, ended, "a9"))
    assert len(world.machine.cluster.servers.foreign[ServerId("s9")].ended) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": "i" * 1000},
        {"cluster": "c" * 1000},
        {"starting": (WorkerId("w" * 1000),)},
        {"processes": (LocalWorker(worker=WorkerId("w"), job=JobId("j"), uid="u" * 1000, gpu=0),)},
        {"exited": (WorkerExit(job=JobId("j" * 1000), worker=WorkerId("w"), exit_code=0, reason=""),)},
        {"server": Server(server=S1, address="", gpus=(Gpu(index=0, kind=GpuKind.CPU, name="g" * 1000),))},
        {"server": Server(server=S1, address="", gpus=(), version="v" * 1000)},
    ],
)
def test_a_hello_with_giant_names_is_dropped(changes: dict[str, Any]) -> None:
    world = World({})
    plain = AgentHello(
        server=Server(server=S1, address="", gpus=()), incarnation="a", workers=(), starting=(), exited=(), agent="a1"
    )
    actions = world.machine.handle(world.now, AgentMessage(S1, replace(plain, **changes), "a1"))
    assert any(isinstance(action, Warn) and len(action.text) < 1000 for action in actions)
    assert S1 not in world.machine.cluster.servers.sessions
    assert S1 not in world.machine.cluster.servers.foreign
    world.machine.handle(world.now, AgentMessage(S1, plain, "a1"))
    assert S1 in world.machine.cluster.servers.sessions


def test_measurements_of_ever_other_shares_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported, "KEPT_MEASURED", 2)
    world, job = training(4)
    for share in (3, 2, 1, 4):
        world.ask(Scale(job=job, share=share))
        world.settle(job)
        generation = world.job(job).record.committed
        world.report(
            world.roster(job)[0],
            WorkerPhase.TRAINING,
            generation,
            50,
            steady=Steady(generation=generation, step_s=0.1 * share, steps=32),
        )
        world.now += 1.0
    assert [entry.share for entry in world.job(job).record.measured] == [1, 4], "the latest"


def test_a_request_with_an_endless_id_is_refused_and_not_remembered() -> None:
    world = World()
    name = "x" * 100_000
    assert isinstance(world.ask(Submit(spec=job_spec()), name), Refused)
    assert len(world.machine.cluster.clients.answers) == 0
    assert isinstance(world.ask(Ping(), "y"), Pong)


def test_what_only_asks_what_a_policy_would_do_is_not_remembered() -> None:
    world = World()
    world.ask(SetPolicy(document={"policy": "fifo"}, dry_run=True))
    assert len(world.machine.cluster.clients.answers) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {
            "document": {
                "policy": "tiresias-l",
                "parameters": {"thresholds_gpu_s": [float(n) for n in range(1, 50_000)]},
            }
        },
        {"document": {"policy": "fifo"}, "source": "s" * 10_000},
        {"document": {"policy": "fifo"}, "user": "u" * 10_000},
    ],
)
def test_a_policy_of_endless_size_is_refused(changes: dict[str, Any]) -> None:
    world = World()
    answer = world.ask(SetPolicy(**changes))
    assert isinstance(answer, Refused)
    assert answer.bad_input
    assert "/policy" not in world.store


def test_the_history_in_the_store_is_bounded_also_where_numbers_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT_EVENTS", 20)
    world = World({"s1": 1})
    for number in range(60):
        if number == 30:
            agent = world.agents[S1]  # knows more than the store, as after a restore
            agent.newest_event, agent.start = agent.newest_event + 1000, agent.start + 1
            world.machine.cluster.servers.met.clear()
            world.hello(S1)
            assert world.machine.cluster.history.next_number > 1000
        world.ask(Cancel(job=world.submit().id))
    assert sum(key.startswith("/events/") for key in world.store) == 20


def test_with_very_many_jobs_all_who_set_shares_by_hand_are_answered_with_one_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs_state, "JOBS_DECIDED_AT_ONCE", 1)
    monkeypatch.setattr(jobs_state, "DECISION_INTERVAL_PER_JOB_S", 0.5)
    world = World({"s1": 8})
    jobs = [world.submit(job_spec(low=1, high=4)).id for _ in range(2)]
    world.now += 1.0
    world.turn()
    for job in jobs:
        world.settle(job)
    world.now += 1.0
    first = world.ask(Scale(job=jobs[0], share=1), "first")
    assert isinstance(first, Scaled), "the last decision is long past"
    assert world.ask(Scale(job=jobs[0], share=2), "second") is None
    assert world.ask(Scale(job=jobs[1], share=3), "third") is None
    assert world.ask(Scale(job=jobs[1], share=3), "third") is None, "repeated"
    world.now += 1.0
    world.turn()
    assert (world.answers["second"].share, world.answers["third"].share) == (2, 3)
    assert world.answers["third"].generation == world.job(jobs[1]).record.generation
    assert world.ask(Scale(job=jobs[1], share=3), "third") == world.answers["third"]
    assert not world.machine.cluster.clients.undecided


def test_a_job_that_ends_before_the_decision_on_its_share_is_said_to_be_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_state, "JOBS_DECIDED_AT_ONCE", 0)
    monkeypatch.setattr(jobs_state, "DECISION_INTERVAL_PER_JOB_S", 1.0)
    monkeypatch.setattr(acts, "MAX_UNDECIDED", 1)
    world = World({"s1": 8})
    job, other = (world.submit(job_spec(low=1, high=4)).id for _ in range(2))
    world.now += 2.0
    world.turn()
    assert world.ask(Scale(job=job, share=1), "scale") is None
    assert "try again" in world.ask(Scale(job=other, share=1)).reason
    world.ask(Cancel(job=job))
    world.now += 2.0
    world.turn()
    assert "is over: it was cancelled" in world.answers["scale"].reason
