"""The agent's state machine, event by event: its messages to the controller and to workers."""

from __future__ import annotations

import pytest

from elasticd.agent.events import (
    AgentTick,
    LogRead,
    ProcessExited,
    ReadLogPiece,
    SendController,
    SendWorker,
    Started,
    WorkerStatusReceived,
)
from elasticd.agent.machine import AgentMachine
from elasticd.protocol.errors import InvalidTransition
from elasticd.protocol.messages import (
    PROTOCOL_VERSION,
    Acknowledged,
    AgentHeartbeat,
    AgentHello,
    LogPiece,
    Order,
    ReadLog,
    StatusReceived,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import WorkerPhase
from elasticd.protocol.times import FIRST_PAUSE_S

from .agent_stories import FIRST, JOB, SECOND, SERVER, Driven, local, order, sent, status


def test_it_says_hello_at_its_start_with_the_workers_it_has_adopted() -> None:
    machine = AgentMachine(SERVER, "agent-1", 1.0)
    gone = WorkerExit(job=JOB, worker=SECOND, exit_code=0, reason="exit code 0")

    (hello,) = sent(machine.handle(5.0, Started((local(),), (gone,))), AgentHello)

    assert hello == AgentHello(
        server=SERVER,
        incarnation="agent-1",
        workers=(),
        starting=(FIRST,),
        exited=(gone,),
        number=1,
        start=1,
        heartbeat_interval_s=1.0,
        processes=(local(),),
        speaks=PROTOCOL_VERSION,
    )


def test_an_event_before_the_start_is_refused() -> None:
    with pytest.raises(InvalidTransition):
        AgentMachine(SERVER, "agent-1", 1.0).handle(0.0, AgentTick())


def test_heartbeats_go_out_once_per_interval_while_the_controller_answers() -> None:
    driven = Driven()
    beats = 0
    for _ in range(20):
        actions = driven.pass_time(0.5)
        beats += len(sent(actions, AgentHeartbeat))
        assert not sent(actions, AgentHello)
        driven.told(Acknowledged(incarnation="c1", sent=0))
    assert beats == 10


def test_a_worker_gets_the_newest_order_when_it_first_speaks() -> None:
    driven = Driven(FIRST)
    assert driven.told(order(2, "tcp://a")) == []
    assert sent(driven.status(status(order=0, generation=0)), Order) == [order(2, "tcp://a")]


def test_a_new_order_goes_to_every_local_worker_of_the_job_also_to_those_that_are_not_in_its_roster() -> None:
    driven = Driven(FIRST, SECOND)
    driven.status(status(FIRST))
    driven.status(status(SECOND))
    actions = driven.told(order(2))
    assert actions == [SendWorker(FIRST, order(2)), SendWorker(SECOND, order(2))]


def test_an_order_is_passed_again_when_its_leader_address_is_known_and_never_when_it_is_older() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    assert sent(driven.told(order(2)), Order)
    assert sent(driven.told(order(2, "tcp://a")), Order) == [order(2, "tcp://a")]
    assert driven.told(order(2)) == []
    assert driven.told(order(2, "tcp://a")) == []
    assert driven.told(order(1, "tcp://b")) == []
    assert sent(driven.told(order(2, "tcp://a", broken=(1,))), Order)


def test_a_worker_whose_status_names_an_older_order_gets_the_newest_again() -> None:
    driven = Driven(FIRST)
    driven.status(status(order=1))
    driven.told(order(2, "tcp://a"))
    assert sent(driven.status(status(sequence=2, order=1)), Order) == [order(2, "tcp://a")]
    assert sent(driven.status(status(sequence=3, order=2, generation=2)), Order) == []


def test_an_order_is_repeated_now_and_then_until_the_worker_has_committed_it() -> None:
    driven = Driven(FIRST)
    driven.status(status())
    driven.told(order(2, "tcp://a"))
    driven.now += 1.0
    assert sent(driven.status(status(sequence=2, order=2)), Order) == []
    driven.now += 1.5
    assert sent(driven.status(status(sequence=3, order=2)), Order) == [order(2, "tcp://a")]
    driven.now += 5
    assert sent(driven.status(status(sequence=4, order=2, generation=2)), Order) == []


def test_a_change_of_phase_is_reported_at_once_and_mere_progress_with_the_heartbeats() -> None:
    driven = Driven(FIRST)
    assert len(sent(driven.status(status(sequence=1)), WorkerReport)) == 1
    driven.now += 0.1
    assert sent(driven.status(status(sequence=2, applied=6)), WorkerReport) == []
    changed = status(sequence=3, applied=6, phase=WorkerPhase.BROKEN)
    assert sent(driven.status(changed), WorkerReport) == [WorkerReport(status=changed)]
    newest = status(sequence=4, applied=7, phase=WorkerPhase.BROKEN)
    assert sent(driven.status(newest), WorkerReport) == []
    assert sent(driven.pass_time(1.0), AgentHeartbeat) == [
        AgentHeartbeat(server=SERVER.server, reports=(WorkerReport(status=newest),), troubles=())
    ]
    assert sent(driven.pass_time(1.0), AgentHeartbeat) == [AgentHeartbeat(server=SERVER.server, troubles=())]


def test_of_two_statuses_with_one_number_the_first_counts_and_the_second_is_answered() -> None:
    driven = Driven(FIRST)
    driven.status(status(sequence=2))
    assert driven.status(status(sequence=2, phase=WorkerPhase.FINISHED, applied=9)) == [
        SendWorker(FIRST, StatusReceived(sequence=2))
    ]
    assert driven.status(status(sequence=1, phase=WorkerPhase.FINISHED)) == []
    (ended,) = sent(driven.hear(ProcessExited(FIRST, 0, "exit code 0")), WorkerExit)
    assert (ended.phase, ended.status) == (WorkerPhase.TRAINING, status(sequence=2))


def test_that_an_evaluation_of_unknown_length_has_begun_is_reported_at_once() -> None:
    driven = Driven(FIRST)
    driven.status(status(sequence=1, longest_step_s=4.0))
    assert sent(driven.status(status(sequence=2, longest_step_s=5.0)), WorkerReport) == []
    assert len(sent(driven.status(status(sequence=3, longest_step_s=FIRST_PAUSE_S)), WorkerReport)) == 1


def test_a_report_that_was_lost_is_told_again_with_the_heartbeat_after_the_workers_next_one() -> None:
    driven = Driven(FIRST)
    driven.status(status(sequence=1))  # lost on its way
    again = status(sequence=2)
    driven.status(again)
    (beat,) = sent(driven.pass_time(1.0), AgentHeartbeat)
    assert beat.reports == (WorkerReport(status=again),)


def test_every_status_is_answered_and_a_late_one_changes_nothing() -> None:
    driven = Driven(FIRST)
    assert sent(driven.status(status(sequence=7)), StatusReceived) == [StatusReceived(sequence=7)]
    assert driven.status(status(sequence=6, phase=WorkerPhase.STARTING)) == []
    assert driven.hello().workers == (status(sequence=7),)


def test_the_status_of_an_unknown_worker_is_ignored() -> None:
    assert Driven().status(status()) == []


def test_a_log_grows_as_long_as_its_worker_runs() -> None:
    driven = Driven(FIRST)
    request = ReadLog(request="r", job=JOB, worker=FIRST, offset=0, limit=100)
    assert driven.told(request) == [ReadLogPiece(request, growing=True)]
    driven.machine.handle(driven.now, ProcessExited(FIRST, 0, ""))
    assert driven.told(request) == [ReadLogPiece(request, growing=False)]


def test_nothing_is_reported_before_the_controller_has_answered_for_the_first_time() -> None:
    machine = AgentMachine(SERVER, "agent-1", 1.0)
    machine.handle(0.0, Started((local(),)))
    assert sent(machine.handle(0.0, WorkerStatusReceived(status())), WorkerReport) == []
    assert sent(machine.handle(0.0, ProcessExited(FIRST, 0, "")), WorkerExit) == []


def test_a_piece_of_a_log_is_passed_on_when_it_has_been_read() -> None:
    piece = LogPiece(request="r", data=b"x", next_offset=1, end=True)
    assert Driven().hear(LogRead(piece)) == [SendController(piece)]
