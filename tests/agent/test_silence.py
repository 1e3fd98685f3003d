"""The agent kills a worker that sends no message for too long."""

from __future__ import annotations

from elasticd.agent.events import (
    AgentTick,
    ControllerMessage,
    ProcessExited,
    SignalProcess,
    Started,
    StopSignal,
    WorkerStatusReceived,
)
from elasticd.agent.machine import AgentMachine
from elasticd.protocol.messages import Acknowledged, WorkerExit
from elasticd.protocol.model import WorkerPhase

from .agent_stories import FIRST, SERVER, Silence, local, sent, status


def test_a_worker_that_falls_silent_is_killed_until_it_is_gone_and_its_end_says_why() -> None:
    silence = Silence()
    assert silence.turn_for(9.9) == []
    assert silence.turn_for(0.2) == [SignalProcess(FIRST, StopSignal.KILL)]
    assert silence.turn_for(2.0) == [SignalProcess(FIRST, StopSignal.KILL)] * 2
    silence.machine.handle(silence.now, ControllerMessage(Acknowledged(incarnation="c", sent=0)))
    (end,) = sent(silence.machine.handle(silence.now, ProcessExited(FIRST, -9, "killed by SIGKILL")), WorkerExit)
    assert (end.exit_code, end.reason) == (-9, "said nothing for 10 s")


def test_each_word_of_a_worker_counts_also_one_without_news() -> None:
    silence = Silence()
    for sequence in range(2, 6):
        assert silence.turn_for(9.0) == []
        silence.machine.handle(silence.now, WorkerStatusReceived(status(sequence=sequence)))
    assert silence.turn_for(9.0) == []


def test_time_in_which_the_agent_itself_was_stopped_is_nobodys_silence() -> None:
    silence = Silence()
    assert silence.turn_for(6.0) == []
    silence.now += 3600.0
    assert silence.turn_for(3.5) == []
    silence.now += 60.0
    assert silence.turn_for(0.3) == []
    assert silence.turn_for(2.0) == [SignalProcess(FIRST, StopSignal.KILL)] * 2


def test_a_worker_that_still_starts_is_given_more_time_and_one_at_its_end_all_it_wants() -> None:
    starting = Silence(WorkerPhase.STARTING)
    assert starting.turn_for(99.0) == []
    assert starting.turn_for(2.0) != []
    for phase in (WorkerPhase.FINISHED, WorkerPhase.LEFT):
        assert Silence(phase).turn_for(200.0) == []


def test_a_worker_that_has_never_spoken_is_left_alone() -> None:
    machine = AgentMachine(SERVER, "agent-1", 1.0, worker_silence_s=10.0)
    machine.handle(0.0, Started((local(),)))
    for now in range(1, 1000):
        assert not [a for a in machine.handle(float(now), AgentTick()) if isinstance(a, SignalProcess)]
