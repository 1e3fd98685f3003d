"""Troubles of a server in the agent's messages, and the starts that it refuses because of them."""

from __future__ import annotations

import msgspec

from elasticd.agent.events import ControllerMessage, HealthChanged, Started, StartProcess
from elasticd.agent.machine import AgentMachine
from elasticd.protocol.messages import AgentHeartbeat, AgentHello, WorkerExit
from elasticd.protocol.model import Fault, Severity, Trouble, WorkerId

from .agent_stories import FIRST, SECOND, SERVER, Driven, sent, start

XID = Trouble(code="xid-79", severity=Severity.STOP, text="the GPU has fallen off the bus", gpu=0)
FULL = Trouble(code="disk-full-state", severity=Severity.NO_NEW_WORK, text="no room")


def test_a_trouble_is_told_at_once_and_with_each_heartbeat() -> None:
    driven = Driven()
    (beat,) = sent(driven.machine.handle(driven.now, HealthChanged((XID,))), AgentHeartbeat)
    assert beat.troubles == (XID,)
    (beat,) = sent(driven.pass_time(1.0), AgentHeartbeat)
    assert beat.troubles == (XID,)
    (beat,) = sent(driven.machine.handle(driven.now, HealthChanged(())), AgentHeartbeat)
    assert beat.troubles == ()


def test_without_a_session_a_trouble_waits_for_the_hello() -> None:
    machine = AgentMachine(SERVER, "agent-1", 1.0, troubles=(FULL,))
    (hello,) = sent(machine.handle(5.0, Started()), AgentHello)
    assert hello.troubles == (FULL,)
    assert machine.handle(5.0, HealthChanged((XID,))) == []


def test_no_worker_is_started_on_a_gpu_in_trouble_unless_an_operator_trusts_it() -> None:
    driven = Driven()
    driven.machine.handle(driven.now, HealthChanged((XID,)))
    actions = driven.machine.handle(driven.now, ControllerMessage(start(FIRST)))
    (end,) = sent(actions, WorkerExit)
    assert (end.fault, end.reason) == (Fault.SERVER, "GPU 0 takes no new work: the GPU has fallen off the bus")
    other = ControllerMessage(start(SECOND, gpu=1))
    assert any(isinstance(action, StartProcess) for action in driven.machine.handle(driven.now, other))
    trusted = msgspec.structs.replace(start(WorkerId("digits-1.7")), trusted=("xid-79",))
    actions = driven.machine.handle(driven.now, ControllerMessage(trusted))
    assert any(isinstance(action, StartProcess) for action in actions)


def test_a_trouble_of_the_whole_server_keeps_all_starts_away_and_a_note_none() -> None:
    driven = Driven()
    note = Trouble(code="xid-31", severity=Severity.NOTE, text="a program's fault", gpu=0)
    driven.machine.handle(driven.now, HealthChanged((note,)))
    actions = driven.machine.handle(driven.now, ControllerMessage(start(FIRST)))
    assert any(isinstance(action, StartProcess) for action in actions)
    driven.machine.handle(driven.now, HealthChanged((FULL,)))
    (end,) = sent(driven.machine.handle(driven.now, ControllerMessage(start(SECOND, gpu=1))), WorkerExit)
    assert end.reason == "this server takes no new work: no room"
