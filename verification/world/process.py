"""A process of the simulated cluster: running, stopped or dead, with its own clock and its own random stream."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable
from typing import Any, Protocol

from .timeline import Timeline

PEER_TIMEOUT_S = 5.0  # ZeroMQ's heartbeat timeout: a peer silent for this long is disconnected
BACKLOG = 100_000  # messages to a stopped process that the kernel buffers


class State(enum.Enum):
    RUNNING = "running"
    STOPPED = "stopped"  # SIGSTOP: its clock runs, it does nothing
    DEAD = "dead"


class Surroundings(Protocol):
    """A process's interface to its cluster."""

    timeline: Timeline
    seed: int


class Process:
    """One process. Every input is a call, so that a stopped process can buffer it.

    `life` counts starts. A call for an earlier life is dropped.
    """

    def __init__(self, around: Surroundings, name: str, host: str) -> None:
        self.timeline = around.timeline
        self.name, self.host = name, host
        self.state = State.DEAD
        self.life = 0
        self.clock_ahead_s = 0.0  # of this process's clock
        self.stopped_at = 0.0
        self.provokes = False  # a forger makes others answer without end; the product's endpoint limits its rate
        self.repeats_at_its_period = True  # a controller whose reign is over repeats its last words on purpose
        self.slow = 1.0  # factor on the durations of its own work
        self.chance = random.Random(f"{around.seed}/process/{name}")
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._armed = float("inf")  # time of its next wake-up
        self._due: float | None = None  # the deadline that it gave last, by its own clock; None: none

    # -- for subclasses

    @property
    def now(self) -> float:
        """The time that its clock shows (Unix time, s)."""
        return self.timeline.now + self.clock_ahead_s

    @property
    def alive(self) -> bool:
        return self.state is not State.DEAD

    @property
    def answers(self) -> bool:
        """Whether the process's peers consider it connected."""
        if self.state is State.STOPPED:
            return self.timeline.now - self.stopped_at < PEER_TIMEOUT_S
        return self.state is State.RUNNING

    def deadline(self) -> float | None:
        """Return when the process needs a turn, by its own clock; None: never."""
        raise NotImplementedError

    def turn(self) -> None:
        """Run a turn, as the process's deadline has come."""
        raise NotImplementedError

    def later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call after `delay_s`, from one of this process's threads or children."""
        when = self.timeline.now + delay_s * self.slow
        self.timeline.at(when, self.chance.random(), self.local, self.life, call, *arguments)

    # -- inputs

    def arrive(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        """Deliver a call from the network."""
        if life != self.life or self.state is State.DEAD:
            return
        if self.state is State.STOPPED and not self.answers:
            return
        self._take(call, arguments)

    def local(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        """Deliver a call from its own threads and children: buffered however long it is stopped."""
        if life == self.life and self.state is not State.DEAD:
            self._take(call, arguments)

    def _take(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.state is State.STOPPED:
            if len(self._inbox) < BACKLOG:
                self._inbox.append((call, arguments))
            return
        call(*arguments)
        if self.state is State.RUNNING:
            self.settle()

    def settle(self) -> None:
        """After an input: take a turn if one is due, and arm the wake-up at the next deadline."""
        self._turn_if_due(self.deadline())

    def _turn_if_due(self, deadline: float | None) -> None:
        if deadline is not None and deadline <= self.timeline.now + self.clock_ahead_s:
            self.turn()
            if self.state is not State.RUNNING:
                return
            deadline = self.deadline()
        self._wait(deadline)

    def _wait(self, due: float | None) -> None:
        """Arm a wake-up at `due` (by its own clock)."""
        self._due = due
        if due is None:
            return
        deadline = due - self.clock_ahead_s
        while deadline + self.clock_ahead_s < due:  # rounding would wake it too early, again and again
            deadline = math.nextafter(deadline, math.inf)
        if deadline < self._armed:
            self._armed = deadline
            self.timeline.at(deadline, self.chance.random(), self._wake, self.life, deadline)

    def _wake(self, life: int, armed: float) -> None:
        if life != self.life or armed != self._armed:
            return
        self._armed = float("inf")
        if self.state is State.RUNNING:
            self._turn_if_due(self._due)  # no input since it gave this deadline

    def rearm(self) -> None:
        """Recompute the wake-up after a jump of the process's clock."""
        self._armed = float("inf")
        if self.state is State.RUNNING:
            self.settle()

    # -- life cycle

    def born(self) -> None:
        """Start, with nothing but the contents of its disk."""
        self.life += 1
        self.state = State.RUNNING
        self._inbox, self._armed = [], float("inf")

    def stop(self) -> None:
        """SIGSTOP."""
        if self.state is State.RUNNING:
            self.state, self.stopped_at = State.STOPPED, self.timeline.now

    def go_on(self, life: int) -> None:
        """SIGCONT. It reads the buffered inputs, or runs its timers first, as poll() may."""
        if life != self.life or self.state is not State.STOPPED:
            return
        self.state = State.RUNNING
        inbox, self._inbox, self._armed = self._inbox, [], float("inf")
        if self.chance.random() < 0.5:
            self.turn()
        for number, (call, arguments) in enumerate(inbox):
            if self.state is not State.RUNNING or life != self.life:
                if self.state is State.STOPPED and life == self.life:
                    self._inbox = inbox[number:] + self._inbox
                return
            call(*arguments)
        if life == self.life and self.state is State.RUNNING:
            self.settle()

    def die(self) -> None:
        """End, and lose all memory."""
        self.state = State.DEAD
        self._inbox, self._armed = [], float("inf")
