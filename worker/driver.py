"""How a worker's machine is driven: facts go in, one at a time; instructions wait for the training thread (`MachineControl`).

Facts go into `machine.WorkerMachine` under one lock; the actions that come out are carried out at once, except for instructions,
which wait in a queue. What an action needs of the world around is up to the subclass: in a cluster `control.ClusterControl`, with
sockets; outside of one `LocalControl`, with one worker, one generation, and nobody to talk to.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Protocol

from ..protocol.messages import Order
from ..protocol.model import GpuAddress, JobId, Member, Roster, ServerId, WorkerId
from ..runtime.clock import SteadyClock
from .communication.communicator import Communicator
from .ending import end_process
from .events import (
    Abandon,
    Action,
    BuildGroup,
    CloseRendezvous,
    DropGroup,
    EndProcess,
    EnterGeneration,
    Event,
    GroupBuilt,
    Instruction,
    OrderReceived,
    Place,
    RetireGroup,
    RunStep,
    SendFollower,
    SendLeader,
    SendStatus,
    StatusAcknowledged,
    TimePassed,
)
from .machine import WorkerMachine


class Control(Protocol):
    """What the training thread needs: a queue for its facts, its instructions, and the communicator in use."""

    def tell(self, fact: Event) -> None:
        """Something has happened. For any thread."""

    def next(self) -> Instruction:
        """What to do next. Waits for it."""

    @property
    def communicator(self) -> Communicator:
        """That of the last EnterGeneration."""


class MachineControl:
    """A machine and its queue of instructions: what both kinds of control have in common."""

    def __init__(self, machine: WorkerMachine) -> None:
        self.machine = machine
        self._clock = SteadyClock()
        self._lock = threading.RLock()
        self._turned = threading.Condition(self._lock)
        self._instructions: deque[Instruction] = deque()
        self._current: tuple[int, Communicator] | None = None
        self._facts: deque[Event] = deque()  # told while actions are carried out: they come after those
        self._waits = False  # the training thread waits for an instruction

    def tell(self, fact: Event) -> None:
        with self._lock:
            self._facts.append(fact)
            if len(self._facts) > 1:
                return
            try:
                while self._facts:
                    for action in self.machine.handle(self._clock.now(), self._facts[0]):
                        self._act(action)
                    self._facts.popleft()
            finally:
                self._facts.clear()

    @property
    def communicator(self) -> Communicator:
        with self._lock:
            assert self._current is not None
            return self._current[1]

    def _act(self, action: Action) -> None:
        match action:
            case RunStep():  # the one of every step first
                self._instruct(action)
            case SendLeader() | SendFollower() | SendStatus():
                self._send(action)
            case BuildGroup():
                self._build(action)
            case DropGroup(generation, attempt):
                self._drop(generation, attempt)
            case CloseRendezvous(generation, attempt):
                self._close_rendezvous(generation, attempt)
            case Abandon(generation):
                if self._current is not None and self._current[0] == generation:
                    self._current[1].abort()
            case RetireGroup(generation):
                if self._current is not None and self._current[0] == generation:
                    self._current[1].retire()
            case EndProcess(code, reason):
                end_process(code, reason)
            case EnterGeneration(roster, attempt):
                before, self._current = self._current, (roster.generation, self._take(roster.generation, attempt))
                if before is not None:
                    before[1].retire()
                self._instruct(action)
            case _:
                self._instruct(action)

    def _wait(self, timeout_s: float | None) -> None:
        """Let the training thread wait until something has happened. The lock is held."""
        self._waits = True
        try:
            self._turned.wait(timeout_s)
        finally:
            self._waits = False

    def _instruct(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)
        if self._waits:
            self._turned.notify_all()

    def _send(self, action: SendLeader | SendFollower | SendStatus) -> None:
        raise NotImplementedError

    def _build(self, build: BuildGroup) -> None:
        raise NotImplementedError

    def _take(self, generation: int, attempt: int) -> Communicator:
        """A communicator that stands: it is in use from now on."""
        raise NotImplementedError

    def _drop(self, generation: int, attempt: int) -> None:
        raise NotImplementedError

    def _close_rendezvous(self, generation: int, attempt: int) -> None:
        raise NotImplementedError


class LocalControl(MachineControl):
    """One worker outside a cluster, whose time passes only while its training thread waits here."""

    def __init__(self, machine: WorkerMachine, roster: Roster) -> None:
        """roster: what the worker trains in."""
        super().__init__(machine)
        self.tell(OrderReceived(Order(job=self.machine.job, roster=roster, leader_address="")))

    @classmethod
    def alone(cls, virtual_workers: int) -> LocalControl:
        """Of a script that runs by itself."""
        member = Member(worker=WorkerId("solo.0"), gpu=GpuAddress(server=ServerId("localhost"), index=0))
        place = Place(JobId("solo"), member.worker, os.getpid(), "", virtual_workers)
        roster = Roster(generation=1, members=(member,), leader=member.worker)
        return cls(WorkerMachine(place, SteadyClock().now()), roster)

    def tell(self, fact: Event) -> None:
        with self._lock:
            super().tell(fact)
            if self._waits:
                self._turned.notify_all()  # a status may be due: the training thread sends it

    def next(self) -> Instruction:
        with self._lock:
            while not self._instructions:
                deadline = self.machine.next_deadline()
                if self._clock.now() >= deadline:
                    self.tell(TimePassed())
                else:
                    self._wait(deadline - self._clock.now())
            return self._instructions.popleft()

    def _send(self, action: SendLeader | SendFollower | SendStatus) -> None:
        if isinstance(action, SendStatus):
            self.tell(StatusAcknowledged(action.status.sequence))

    def _build(self, build: BuildGroup) -> None:
        self.tell(GroupBuilt(build.roster.generation, build.attempt))

    def _take(self, generation: int, attempt: int) -> Communicator:
        return Communicator.alone()

    def _drop(self, generation: int, attempt: int) -> None:
        pass

    def _close_rendezvous(self, generation: int, attempt: int) -> None:
        pass
