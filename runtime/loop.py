"""Event loop of a daemon: handlers for sockets and file descriptors, then one call of `on_turn` per turn.

A plain `zmq.Poller` with `next_deadline` instead of timer callbacks reaches twice asyncio's round trips per second, and time
passes in one place. All callbacks run in the thread that runs the loop; other threads and signal handlers may call `wake` and
`stop`.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from types import FrameType

import zmq

from . import readiness
from .clock import Clock

log = logging.getLogger(__name__)

MAX_WAIT_S = 1.0  # so that a lost wake-up delays the loop for a second at most
MAX_MESSAGES_PER_TURN = 128  # so that a busy peer starves neither the other peers nor the timers
MAX_TAKEN_IN_PER_TURN = 5000  # of one socket with messages that are only queued: some 40 ms


class Loop:
    """Polls sockets and descriptors, calls their handlers, then `on_turn`, until `stop`."""

    def __init__(self, clock: Clock, on_turn: Callable[[], None], next_deadline: Callable[[], float | None]) -> None:
        """on_turn: runs after each round of handlers. next_deadline: when to wake without input (Unix time, s)."""
        self._clock = clock
        self._on_turn = on_turn
        self._next_deadline = next_deadline
        self._poller = zmq.Poller()
        self._sockets: dict[zmq.Socket[bytes], tuple[Callable[[list[bytes]], None], int]] = {}
        self._frames: dict[zmq.Socket[bytes], Callable[[list[zmq.Frame]], None]] = {}
        self._backlogs: list[tuple[Callable[[], int], Callable[[], None]]] = []
        self._descriptors: dict[int, Callable[[], None]] = {}
        self._stopping = False
        self._signalled: dict[int, Callable[[], None]] = {}
        self._watchdog = readiness.Watchdog()
        self._is_well: Callable[[], bool] = lambda: True
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.add_descriptor(self._wake_read, self._drain)

    def add_socket(
        self, socket: zmq.Socket[bytes], handler: Callable[[list[bytes]], None], most: int = MAX_MESSAGES_PER_TURN
    ) -> None:
        """Call `handler(frames)` for each message of `socket`, for at most `most` messages in a turn."""
        self._sockets[socket] = handler, most
        self._poller.register(socket, zmq.POLLIN)

    def add_frames(self, socket: zmq.Socket[bytes], handler: Callable[[list[zmq.Frame]], None]) -> None:
        """Call `handler(frames)` for each message of `socket`, with ZeroMQ's frames, which carry the proof of the connection.

        `handler` only queues messages for a backlog, so a turn takes in far more of them (MAX_TAKEN_IN_PER_TURN)."""
        self._frames[socket] = handler
        self._poller.register(socket, zmq.POLLIN)

    def add_backlog(self, waiting: Callable[[], int], handle: Callable[[], None]) -> None:
        """While `waiting()` is not 0, call `handle()`, which handles one waiting message; at most MAX_MESSAGES_PER_TURN a
        turn."""
        self._backlogs.append((waiting, handle))

    def remove_backlog(self, waiting: Callable[[], int]) -> None:
        self._backlogs = [each for each in self._backlogs if each[0] != waiting]

    def remove_socket(self, socket: zmq.Socket[bytes]) -> None:
        """Remove a socket that `add_socket` or `add_frames` has added."""
        if self._sockets.pop(socket, None) is None:
            del self._frames[socket]
        self._poller.unregister(socket)

    def add_descriptor(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call `handler()` whenever `descriptor` is readable (a pidfd: its process has ended)."""
        self._descriptors[descriptor] = handler
        self._poller.register(descriptor, zmq.POLLIN)

    def remove_descriptor(self, descriptor: int) -> None:
        if self._descriptors.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def wake(self) -> None:
        """Make the loop turn once more, from any thread."""
        try:
            os.write(self._wake_write, b"w")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def stop(self) -> None:
        """Make `run` return after the current turn."""
        self._stopping = True
        self.wake()

    def stop_on_signals(self) -> None:
        """Stop the loop on SIGTERM and SIGINT."""

        def handler(number: int, frame: FrameType | None) -> None:
            log.info("received %s, stopping", signal.Signals(number).name)
            self.stop()

        signal.signal(signal.SIGTERM, handler)
        signal.signal(signal.SIGINT, handler)

    def on_signal(self, number: signal.Signals, handler: Callable[[], None]) -> None:
        """Call `handler()` in the loop after signal `number`; several signals before the next turn call it once."""

        def note(_: int, __: FrameType | None) -> None:
            self._signalled[number] = handler
            self.wake()

        signal.signal(number, note)

    def feed_only_if(self, is_well: Callable[[], bool]) -> None:
        """Feed the watchdog only while `is_well()`: a turning loop alone does not show that the daemon works."""
        self._is_well = is_well

    def run(self) -> None:
        """Turn until `stop`. An error of a handler ends the loop: only the process's main function catches it."""
        while not self._stopping:
            self.turn()

    def turn(self) -> None:
        """Do one round: wait, handle input, call `on_turn`, then feed the service manager's watchdog (here alone)."""
        for ready, _ in self._poller.poll(self._wait_ms()):
            if isinstance(ready, int):
                if (on_readable := self._descriptors.get(ready)) is not None:
                    on_readable()
            elif (on_message := self._sockets.get(ready)) is not None:
                self._receive(ready, *on_message)
            elif (on_frames := self._frames.get(ready)) is not None:
                self._receive_frames(ready, on_frames)
        for waiting, handle in self._backlogs:
            for _ in range(min(MAX_MESSAGES_PER_TURN, waiting())):
                if waiting():  # handling one message may remove others
                    handle()
        while self._signalled:
            self._signalled.popitem()[1]()
        self._on_turn()
        if self._is_well():
            self._watchdog.feed()

    def _wait_ms(self) -> int:
        if any(waiting() for waiting, _ in self._backlogs):
            return 0
        deadline = self._next_deadline()
        wait_s = MAX_WAIT_S if deadline is None else min(MAX_WAIT_S, max(0.0, deadline - self._clock.now()))
        return int(wait_s * 1000 + 0.999)

    def _receive(self, socket: zmq.Socket[bytes], handler: Callable[[list[bytes]], None], most: int) -> None:
        for _ in range(most):
            try:
                frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            handler(frames)

    def _receive_frames(self, socket: zmq.Socket[bytes], handler: Callable[[list[zmq.Frame]], None]) -> None:
        for _ in range(MAX_TAKEN_IN_PER_TURN):
            try:
                frames = [socket.recv(zmq.DONTWAIT, copy=False)]
            except zmq.Again:
                return
            while frames[-1].more:  # the other parts of a message come with the first
                frames.append(socket.recv(copy=False))
            handler(frames)

    def _drain(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._wake_read)
        os.close(self._wake_write)
