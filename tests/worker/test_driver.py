"""The shell around a worker's state machine: when it handles the facts of the training thread."""

from __future__ import annotations

import os

import pytest

from elasticd.protocol.errors import InvalidTransition
from elasticd.protocol.model import GpuAddress, JobId, Member, Roster, ServerId, WorkerId
from elasticd.worker import events as e
from elasticd.worker.driver import LocalControl
from elasticd.worker.machine import WorkerMachine


class Recorder(WorkerMachine):
    """A machine that keeps the facts that it has handled, with their times."""

    def __init__(self) -> None:
        super().__init__(e.WorkerConfig(JobId("solo"), WorkerId("solo.0"), os.getpid(), "", 1), 0.0)
        self.handled: list[tuple[float, e.Event]] = []

    def handle(self, now: float, event: e.Event) -> list[e.Action]:
        self.handled.append((now, event))
        return super().handle(now, event)


@pytest.fixture
def control() -> LocalControl:
    """A worker whose training thread has just begun its first step."""
    member = Member(worker=WorkerId("solo.0"), gpu=GpuAddress(server=ServerId("localhost"), index=0))
    found = LocalControl(Recorder(), Roster(generation=1, members=(member,), leader=member.worker))
    found.tell(e.Arrived(10, 10, 1, True))
    assert isinstance(found.next(), e.EnterGeneration)
    assert isinstance(found.next(), e.EnterLoop)
    found.tell(e.StepWanted(0))
    assert isinstance(found.next(), e.RunStep)
    return found


def handled(control: LocalControl) -> list[tuple[float, e.Event]]:
    assert isinstance(control.machine, Recorder)
    return control.machine.handled


def test_the_facts_of_a_step_are_handled_with_their_own_times_before_the_next_fact(control: LocalControl) -> None:
    before = len(handled(control))
    facts: list[e.Event] = [e.PartComputed(), e.WordRead(0), e.StepApplied(0)]
    times = []
    for fact in facts:
        times.append(control._clock.now())
        control.tell(fact)
        times.append(control._clock.now())
    assert len(handled(control)) == before, "none of them has an answer"
    between = control._clock.now()
    control.tell(e.StepWanted(0))
    assert isinstance(control.next(), e.RunStep)
    found = handled(control)[before:]
    assert [fact for _, fact in found] == [*facts, e.StepWanted(0)]
    assert sorted([*times, *(now for now, _ in found[:3])]) == [
        times[0], found[0][0], times[1], times[2], found[1][0], times[3], times[4], found[2][0], times[5],
    ]  # fmt: skip
    assert found[3][0] >= between


def test_who_looks_at_the_machine_sees_the_step_that_has_been_applied(control: LocalControl) -> None:
    for fact in (e.PartComputed(), e.WordRead(0), e.StepApplied(0)):
        control.tell(fact)
    control.catch_up()
    assert control.machine.applied == 0


def test_a_fact_that_cannot_come_is_an_error_by_the_next_one(control: LocalControl) -> None:
    control.tell(e.WordRead(0))  # before this worker's own part
    with pytest.raises(InvalidTransition, match="WordRead while the training thread is computing"):
        control.tell(e.StepWanted(0))
    assert isinstance(handled(control)[-1][1], e.WordRead)
