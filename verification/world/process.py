"""A process of the simulated cluster: running, stopped or dead, with its own clock and its own stream of chance."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable
from typing import Any, Protocol

from .timeline import Timeline

PEER_TIMEOUT_S = 5.0  # ZeroMQ's heartbeats: a peer that is silent for so long is disconnected
BACKLOG = 100_000  # messages to a stopped process that its kernel keeps


class State(enum.Enum):
    """Whether a process runs."""

    RUNNING = "running"
    STOPPED = "stopped"  # SIGSTOP: its clock goes on, it does nothing
    DEAD = "dead"


class Surroundings(Protocol):
    """What a process needs of its cluster."""

    timeline: Timeline
    seed: int


class Process:
    """One process. Whatever reaches it is a call, so that a stopped process can keep it for later.

    `life` counts its starts. A call that was meant for an earlier life never arrives.
    """

    def __init__(self, around: Surroundings, name: str, host: str) -> None:
        self.timeline = around.timeline
        self.name, self.host = name, host
        self.state = State.DEAD
        self.life = 0
        self.clock_ahead_s = 0.0  # of this process's clock
        self.stopped_at = 0.0
        self.provokes = False  # lies, so that others answer without end; a real door limits its rate
        self.slow = 1.0  # all that it does itself takes so many times longer
        self.chance = random.Random(f"{around.seed}/process/{name}")
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._armed = float("inf")  # when it is woken
        self._due: float | None = None  # when it wants a turn, as it said last; by its own clock

    # -- for the shells of the world

    @property
    def now(self) -> float:
        """What its clock shows (Unix time, s)."""
        return self.timeline.now + self.clock_ahead_s

    @property
    def alive(self) -> bool:
        return self.state is not State.DEAD

    @property
    def answers(self) -> bool:
        """Do its peers take it for connected?"""
        if self.state is State.STOPPED:
            return self.timeline.now - self.stopped_at < PEER_TIMEOUT_S
        return self.state is State.RUNNING

    def deadline(self) -> float | None:
        """When it wants a turn, by its own clock."""
        raise NotImplementedError

    def turn(self) -> None:
        """Its deadline has come."""
        raise NotImplementedError

    def later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Do something after a while, as this process's own threads and children do."""
        when = self.timeline.now + delay_s * self.slow
        self.timeline.at(when, self.chance.random(), self.local, self.life, call, *arguments)

    # -- what reaches it

    def arrive(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        """From the network."""
        if life != self.life or self.state is State.DEAD:
            return
        if self.state is State.STOPPED and not self.answers:
            return
        self._take(call, arguments)

    def local(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        """From its own threads and children: kept however long it is stopped."""
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
        """It has been given something: a turn if one is due, and its next one at its deadline."""
        self._turn_if_due(self.deadline())

    def _turn_if_due(self, deadline: float | None) -> None:
        if deadline is not None and deadline <= self.timeline.now + self.clock_ahead_s:
            self.turn()
            if self.state is not State.RUNNING:
                return
            deadline = self.deadline()
        self._wait(deadline)

    def _wait(self, due: float | None) -> None:
        """Make sure that it is woken then (by its own clock)."""
        self._due = due
        if due is None:
            return
        deadline = due - self.clock_ahead_s
        while deadline + self.clock_ahead_s < due:  # by a rounding: it would be woken for nothing, again and again
            deadline = math.nextafter(deadline, math.inf)
        if deadline < self._armed:
            self._armed = deadline
            self.timeline.at(deadline, self.chance.random(), self._wake, self.life, deadline)

    def _wake(self, life: int, armed: float) -> None:
        if life != self.life or armed != self._armed:
            return
        self._armed = float("inf")
        if self.state is State.RUNNING:
            self._turn_if_due(self._due)  # nothing has been given to it since it said when

    def rearm(self) -> None:
        """Its clock has jumped: the deadlines that it has said are at other times now."""
        self._armed = float("inf")
        if self.state is State.RUNNING:
            self.settle()

    # -- its life

    def born(self) -> None:
        """It starts, with nothing but what it finds on a disk."""
        self.life += 1
        self.state = State.RUNNING
        self._inbox, self._armed = [], float("inf")

    def stop(self) -> None:
        """SIGSTOP."""
        if self.state is State.RUNNING:
            self.state, self.stopped_at = State.STOPPED, self.timeline.now

    def go_on(self, life: int) -> None:
        """SIGCONT. What has come meanwhile is read; or its timers come first, as poll() may have it."""
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
        """It is gone, with all that it had in memory."""
        self.state = State.DEAD
        self._inbox, self._armed = [], float("inf")
