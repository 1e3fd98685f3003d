"""Shell around a worker's state machine: it passes facts in, one at a time, and carries out the resulting actions.

Facts go into `machine.WorkerMachine` under one lock. Actions are carried out at once, except for instructions, which wait in a
queue for the training thread.

Three of the four facts of a step (`WITHIN_STEP`) have no answer. They wait, with their times, for the next fact of any kind, and
are handled before it, so a quiet step enters the state machine once. Nobody sees the machine without them (`catch_up`). A limit
that begins with one of them may be noticed late, by the time until the next status at the most.

A subclass of `MachineControl` connects it to the outside: in a cluster `control.ClusterControl`,
with sockets; outside a cluster `LocalControl`, with one worker, one generation, and no peers.
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
    PartComputed,
    RetireGroup,
    RunStep,
    SendFollower,
    SendLeader,
    SendStatus,
    StatusAcknowledged,
    StepApplied,
    WordRead,
    WorkerConfig,
    WorkerTick,
)
from .machine import WorkerMachine

WITHIN_STEP = frozenset({PartComputed, WordRead, StepApplied})  # facts without an answer, another of which follows


class Control(Protocol):
    """The training thread's view of the shell: it reports facts, gets instructions, and uses the communicator."""

    def tell(self, fact: Event) -> None:
        """Report a fact. For any thread."""

    def next(self) -> Instruction:
        """Return the next instruction. Blocks until there is one."""

    @property
    def communicator(self) -> Communicator:
        """Communicator of the last EnterGeneration."""


class MachineControl:
    """A state machine and its queue of instructions, for both kinds of control."""

    def __init__(self, machine: WorkerMachine) -> None:
        self.machine = machine
        self._clock = SteadyClock()
        self._lock = threading.RLock()
        self._turned = threading.Condition(self._lock)
        self._instructions: deque[Instruction] = deque()
        self._current: tuple[int, Communicator] | None = None
        self._facts: deque[Event] = deque()  # facts told while actions are carried out are handled after these actions
        self._waiting: deque[tuple[float, Event]] = deque()  # facts `WITHIN_STEP`, with their times (Unix time, s)
        self._waits = False  # whether the training thread waits for an instruction

    def tell(self, fact: Event) -> None:
        with self._lock:
            if type(fact) in WITHIN_STEP and not self._facts:
                self._waiting.append((self._clock.now(), fact))
                return
            self._facts.append(fact)
            if len(self._facts) > 1:
                return
            try:
                self.catch_up()
                while self._facts:
                    for action in self.machine.handle(self._clock.now(), self._facts[0]):
                        self._act(action)
                    self._facts.popleft()
            finally:
                self._facts.clear()
            self._handled()

    def catch_up(self) -> None:
        """Handle the facts that wait, before anything is read from the machine."""
        with self._lock:
            while self._waiting:
                for action in self.machine.handle(*self._waiting.popleft()):
                    self._act(action)

    def _handled(self) -> None:
        """Called when facts have been handled, with the lock held."""

    @property
    def communicator(self) -> Communicator:
        with self._lock:
            assert self._current is not None
            return self._current[1]

    def _act(self, action: Action) -> None:
        match action:
            case RunStep():  # first, since every step has one
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
        """Block the training thread until it is notified, or for `timeout_s` seconds. The caller holds the lock."""
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
        """Return the communicator that was built for this generation and attempt, to be used from now on."""
        raise NotImplementedError

    def _drop(self, generation: int, attempt: int) -> None:
        raise NotImplementedError

    def _close_rendezvous(self, generation: int, attempt: int) -> None:
        raise NotImplementedError


class LocalControl(MachineControl):
    """Control of one worker outside a cluster. Its deadlines are handled only while its training thread waits here."""

    def __init__(self, machine: WorkerMachine, roster: Roster) -> None:
        """roster: the only generation."""
        super().__init__(machine)
        self.tell(OrderReceived(Order(job=self.machine.job, roster=roster, leader_address="")))

    @classmethod
    def alone(cls, virtual_workers: int) -> LocalControl:
        """Return the control of a script that runs outside a cluster."""
        member = Member(worker=WorkerId("solo.0"), gpu=GpuAddress(server=ServerId("localhost"), index=0))
        place = WorkerConfig(JobId("solo"), member.worker, os.getpid(), "", virtual_workers)
        roster = Roster(generation=1, members=(member,), leader=member.worker)
        return cls(WorkerMachine(place, SteadyClock().now()), roster)

    def _handled(self) -> None:
        if self._waits:
            self._turned.notify_all()  # a status may be due: the training thread sends it

    def next(self) -> Instruction:
        with self._lock:
            while not self._instructions:
                self.catch_up()
                deadline = self.machine.next_deadline()
                if self._clock.now() >= deadline:
                    self.tell(WorkerTick())
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
