"""A server that reports workers of other servers changes nothing, and is shown as compromised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from elasticd.controller.events import AgentMessage, SendAgent, Warn
from elasticd.controller.inbound import messages
from elasticd.protocol.messages import (
    AgentHeartbeat,
    AgentHello,
    EventKind,
    GetLog,
    GetServers,
    LocalWorker,
    LogPiece,
    ReadLog,
    StopWorker,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import JobId, ServerId, WorkerId, WorkerPhase, WorkerStatus

from .world import World, job_spec

FORGER = ServerId("s2")


def scene() -> tuple[Any, Any, Any]:
    """A job that trains on s1 alone, the status of its worker there, and s2, which is not involved."""
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec(low=1, high=1))
    world.settle(job.id, step=20)
    (worker,) = world.running(job.id)
    agent, process = world.find(worker)
    assert agent.server.server == "s1"
    return world, job, process.status


def shown(world: Any) -> Any:
    return next(view for view in world.ask(GetServers()).servers if view.server.server == FORGER)


def hello_with(world: Any, agent: Any, **changes: Any) -> None:
    agent.hellos += 1
    hello = AgentHello(
        server=agent.server, incarnation=f"agent-{agent.server.server}--{agent.start}", workers=(), starting=(),
        exited=(), number=agent.hellos, agent=agent.identity, start=agent.start,
    )  # fmt: skip
    world.feed(AgentMessage(agent.server.server, replace(hello, **changes), agent.identity))


def ended(status: WorkerStatus, uid: str, **changes: Any) -> WorkerExit:
    values = {"job": status.job, "worker": status.worker, "exit_code": 0, "reason": "lies", "uid": uid} | changes
    return WorkerExit(phase=WorkerPhase.FINISHED, status=status, **values)


def further(status: WorkerStatus, **changes: Any) -> WorkerStatus:
    return replace(status, applied=10**6, sequence=10**9, phase=WorkerPhase.FINISHED, **changes)


Lie = Callable[[Any, WorkerStatus, str], Any]
LIES: dict[str, Lie] = {
    "a status": lambda job, status, uid: WorkerReport(status=further(status), uid=uid),
    "a status of a later generation": lambda job, status, uid: WorkerReport(
        status=further(status, generation=1000, order=1000), uid=uid
    ),
    "a status of a worker to come": lambda job, status, uid: WorkerReport(
        status=further(status, worker=WorkerId(f"{job.id}.7")), uid=uid
    ),
    "a status of another job's worker": lambda job, status, uid: WorkerReport(
        status=further(status, worker=WorkerId("other-9.0")), uid=uid
    ),
    "a heartbeat with a status": lambda job, status, uid: AgentHeartbeat(
        server=FORGER, reports=(WorkerReport(status=further(status), uid=uid),)
    ),
    "a heartbeat with a start": lambda job, status, uid: AgentHeartbeat(server=FORGER, starting=(status.worker,)),
    "an end": lambda job, status, uid: ended(further(status), uid),
    "an end of a worker to come": lambda job, status, uid: ended(
        further(status, worker=WorkerId(f"{job.id}.7")), uid, worker=WorkerId(f"{job.id}.7")
    ),
    "a heartbeat with a start of an endless name": lambda job, status, uid: AgentHeartbeat(
        server=FORGER, starting=(WorkerId(f"{job.id}.{'9' * 1000}"),)
    ),
    "an end of a worker of a job that nobody knows": lambda job, status, uid: ended(
        further(status, worker=WorkerId("other-9.0")), uid, job=JobId("none-9"), worker=WorkerId("other-9.0")
    ),
}


def test_an_earlier_worker_that_is_not_known_any_more_was_in_no_generation_to_come():
    world, job, status = scene()
    job.update(worker_count=10)  # of which all but the last ones are forgotten
    later = further(status, worker=WorkerId(f"{job.id}.7"), generation=1000, order=1000)
    world.feed(AgentMessage(FORGER, WorkerReport(status=later, uid=job.uid)))
    assert f"the last one of {job.id}.7 in a generation of {job.id} that was never ordered" in shown(world).trouble


@pytest.mark.parametrize("uid_known", [False, True])
@pytest.mark.parametrize("name", LIES)
def test_what_is_said_of_anothers_worker_changes_nothing_and_is_counted(name: str, uid_known: bool):
    world, job, status = scene()
    record, statuses = job.record, dict(job.statuses)
    for _ in range(50):
        world.feed(AgentMessage(FORGER, LIES[name](job, status, job.uid if uid_known else "")))
    world.turn()
    assert job.record is record
    assert job.statuses == statuses
    assert not world.machine.cluster.servers.sessions[FORGER].orphans
    assert world.machine.cluster.servers.sessions[FORGER].alive
    assert shown(world).forged == 50
    assert "speaks of workers that were never sent to it: 50 reports were refused" in shown(world).trouble


def test_of_many_forged_reports_some_are_told():
    world, job, status = scene()
    warned = 0
    for _ in range(500):
        actions = world.feed(AgentMessage(FORGER, LIES["an end"](job, status, "")))
        warned += sum(isinstance(action, Warn) for action in actions)
    assert warned == 3
    assert world.kinds().count(EventKind.SERVER_FORGED) == 3
    assert {(line.who, line.act, line.done) for line in world.audits if not line.done} == {
        ("server:s2", "report", False)
    }
    world.now += 600.0
    world.hello("s2")
    world.feed(AgentMessage(FORGER, LIES["an end"](job, status, "")))
    assert f"501 reports were refused, the last one of {status.worker}, which was sent to s1" in world.story()


@pytest.mark.parametrize("uid_known", [False, True])
def test_a_hello_that_names_anothers_workers_changes_nothing_of_their_job(uid_known: bool):
    world, job, status = scene()
    record = job.record
    uid, beyond = job.uid if uid_known else "", WorkerId(f"{job.id}.7")
    hello_with(
        world, world.agents[FORGER],
        workers=(further(status), further(status, worker=beyond, generation=1000)), starting=(WorkerId(f"{job.id}.8"),),
        exited=(ended(further(status), uid),),
        processes=tuple(LocalWorker(worker=w, job=job.id, uid=uid, gpu=0) for w in (status.worker, beyond)),
    )  # fmt: skip
    world.turn()
    assert job.record is record
    assert EventKind.OVERTAKEN not in world.kinds()
    assert shown(world).forged >= 3
    stopped = {message.worker for server, message in world.sent if server == FORGER and isinstance(message, StopWorker)}
    assert stopped <= {status.worker, beyond, f"{job.id}.8"}, "whatever runs there holds a GPU of that server alone"
    assert not [server for server, message in world.sent if server == "s1" and isinstance(message, StopWorker)]


def test_a_server_that_was_met_before_cannot_show_that_the_store_is_old():
    world, _, _ = scene()
    next_job, next_event = world.machine.cluster.jobs.next_number, world.machine.cluster.history.next_number
    hello_with(world, world.agents[FORGER], cluster=world.machine.cluster.id, newest_event=10**9, highest_job=10**9)
    cluster = world.machine.cluster
    assert (cluster.jobs.next_number, cluster.store_is_old) == (next_job, False)
    assert cluster.history.next_number < next_event + 10


def test_a_server_that_has_run_a_job_cannot_make_it_save_and_start_again():
    """It knows the uid of the job, and its own worker's name; that counts only if its first hello named them."""
    world = World({"s1": 1, "s2": 1})
    job = world.submit(job_spec(low=2, high=2))
    world.settle(job.id, step=20)
    theirs = next(entry for entry in job.workers if entry.gpu.server == FORGER)
    status = world.find(theirs.worker)[1].status
    for name in ("a status of a later generation", "a status of a worker to come", "an end of a worker to come"):
        world.feed(AgentMessage(FORGER, LIES[name](job, status, job.uid)))
    world.turn()
    assert not job.record.overtaken
    assert EventKind.STORE_OLD not in world.kinds()
    assert len(world.running(job.id)) == 2
    assert shown(world).forged == 3


def test_a_log_of_another_server_is_not_taken_from_this_one():
    world, job, status = scene()
    assert world.ask(GetLog(job=job.id, worker=status.worker, offset=0), "log") is None
    (asked,) = world.messages(ReadLog)
    forged = LogPiece(request=asked.request, data=b"lies\n", next_offset=5, end=True)
    world.feed(AgentMessage(FORGER, forged))
    assert "log" not in world.answers
    assert shown(world).forged == 1
    world.feed(AgentMessage(ServerId("s1"), replace(forged, data=b"true\n")))
    assert world.answers["log"].data == b"true\n"


def test_an_honest_server_is_not_counted_whatever_comes_late_or_twice():
    world, job, status = scene()
    worker = status.worker
    report = WorkerReport(status=status, uid=job.uid)
    world.exit(worker, -9)
    last = WorkerExit(job=job.id, worker=worker, exit_code=-9, reason="killed", uid=job.uid, status=status)
    for message in (report, last, AgentHeartbeat(server=ServerId("s1"), starting=(worker,), reports=(report,)), last):
        world.feed(AgentMessage(ServerId("s1"), message))
    world.hello("s1")
    world.restart()
    world.feed(AgentMessage(ServerId("s1"), last))
    assert not world.machine.cluster.servers.forged


def test_a_hello_over_anothers_connection_is_dropped_and_counted():
    world, _, _ = scene()
    agent = world.agents[ServerId("s1")]
    session = world.machine.cluster.servers.sessions[ServerId("s1")]
    hello = AgentHello(server=agent.server, incarnation="x", workers=(), starting=(), exited=(), number=99)
    actions: list[Any] = []
    for _ in range(20):
        actions += world.feed(AgentMessage(FORGER, hello))
    assert world.machine.cluster.servers.sessions[ServerId("s1")] is session
    assert not [action for action in actions if isinstance(action, SendAgent)]
    assert shown(world).forged == 20
    assert sum(isinstance(action, Warn) for action in actions) == 3


def test_made_up_jobs_without_end_are_told_in_a_few_words(monkeypatch: pytest.MonkeyPatch):
    world, _, status = scene()
    monkeypatch.setattr(messages, "MAX_ORPHANS", 500)
    for number in range(600):
        job = JobId(f"{'x' * 200}-{number + 1000}")
        strange = replace(status, job=job, worker=WorkerId(f"{job}.0"))
        world.feed(AgentMessage(FORGER, WorkerReport(status=strange, uid="u")))
    assert len(world.machine.cluster.servers.sessions[FORGER].unknown) == 500
    assert len(shown(world).trouble) < 1500


def test_what_a_server_shows_of_a_job_after_it_was_met_does_not_count():
    """Its first hello to a new controller names an unknown worker without the uid of the job, which it learns later."""
    world, job, status = scene()
    world.restart(hello=False)
    world.hello("s1")
    beyond = WorkerId(f"{job.id}.7")
    local = LocalWorker(worker=beyond, job=job.id, uid="", gpu=0)
    hello_with(world, world.agents[FORGER], starting=(beyond,), processes=(local,), incarnation="new", start=2)
    world.turn()
    later = replace(local, uid=job.uid)
    hello_with(world, world.agents[FORGER], processes=(later,), incarnation="new", start=2)
    for _ in range(3):
        world.feed(AgentMessage(FORGER, WorkerReport(status=further(status, worker=beyond, saved=10**6), uid=job.uid)))
    world.turn()
    job = world.job(job.id)
    assert (job.record.overtaken, job.record.saved_step) == (False, None)
    assert EventKind.STORE_OLD not in world.kinds()
    assert shown(world).forged >= 3


def test_where_a_part_of_a_jobs_history_is_lost_a_report_is_refused_and_not_counted():
    world, job, status = scene()
    # the store was restored: an honest server may have workers that the store has forgotten
    job.update(lost_generations=(1, 1001))
    before = replace(job.record, counted_s=None)
    world.feed(AgentMessage(FORGER, WorkerReport(status=further(status)), world.agents["s2"].identity))
    world.feed(AgentMessage(FORGER, ended(further(status), job.uid), world.agents["s2"].identity))
    world.turn()
    assert replace(job.record, counted_s=None) == before
    assert shown(world).forged == 0
