"""Control of a rehearsed worker: its communicators are built before it begins, and its timetable takes the place of
orders.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Protocol

from ...protocol.messages import Suspend
from ..communication.communicator import Communicator
from ..driver import MachineControl
from ..environment import ClusterEnvironment
from ..events import (
    BuildGroup,
    Event,
    Instruction,
    RunStep,
    SendFollower,
    SendLeader,
    SendStatus,
    StatusAcknowledged,
    StepApplied,
    SuspendReceived,
    WorkerTick,
)
from ..machine import WorkerMachine
from .timetable import Timetable


class Watcher(Protocol):
    """Sees the facts of the training thread before they are handled."""

    def saw(self, fact: Event) -> None: ...


class Rehearsal(MachineControl):
    """A worker without an agent. For the training thread alone, except for facts from threads of the library."""

    def __init__(
        self,
        timetable: Timetable,
        place: ClusterEnvironment,
        connect: Callable[[int, int, int], Communicator],
        suspended_at: int | None = None,
    ) -> None:
        """connect: builds the communicator of a generation, from the generation, this worker's rank and the number of
        workers; called for all of this worker's generations in their order. suspended_at: the number of applied steps
        at which the job is preempted.
        """
        super().__init__(WorkerMachine(place.place(os.getpid(), ""), 0.0, timetable))
        self.timetable = timetable
        self._job = place.job
        self._suspended_at = suspended_at
        self._watcher: Watcher | None = None
        self._communicators = {each: connect(each, *timetable.rank_in(each)) for each in timetable.mine()}

    def watch(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def tell(self, fact: Event) -> None:
        if self._watcher is not None:
            self._watcher.saw(fact)
        super().tell(fact)
        if isinstance(fact, StepApplied) and fact.step + 1 == self._suspended_at:
            super().tell(SuspendReceived(Suspend(job=self._job)))

    def next(self) -> Instruction:
        with self._lock:
            while not self._instructions:
                self.tell(WorkerTick())
                self._wait(0.01)
            instruction = self._instructions.popleft()
        if isinstance(instruction, RunStep) and self.timetable.dies_in(instruction.step):
            os.kill(os.getpid(), signal.SIGKILL)
        return instruction

    def _send(self, action: SendLeader | SendFollower | SendStatus) -> None:
        assert isinstance(action, SendStatus)
        self.tell(StatusAcknowledged(action.status.sequence))

    def _build(self, build: BuildGroup) -> None:
        pass

    def _take(self, generation: int, attempt: int) -> Communicator:
        return self._communicators.pop(generation, None) or Communicator.alone()

    def _drop(self, generation: int, attempt: int) -> None:
        pass

    def _close_rendezvous(self, generation: int, attempt: int) -> None:
        pass
