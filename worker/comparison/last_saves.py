"""Comparison of files saved after the training loop (`saves`), where no step's message carries them any more.

Each worker sends the leader, in order, what it passes to `run.save`; before that, what it had noted in the loop since the last
step, and what it has registered. The leader has a thread per worker, so no worker waits for the leader: they go on, and exit.
Before the leader writes a file, it waits until each other worker has sent its message of the same number, has reached the end
of its script, or is lost; this wait has a limit. Messages are point-to-point rather than collectives: a worker that has left
its loop alone would otherwise be mistaken for one in its next step.

At a difference the leader exits with `exits.DISAGREED`, which fails the job, and the file is not written.
"""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...protocol import exits
from ..communication.communicator import Communicator, CommunicatorBroken
from ..communication.exchange import receive_bytes, send_bytes
from ..ending import end_process
from .saves import Note, Saves, by_file, judge_notes

END = msgspec.msgpack.encode({"end": True})
FIRST_TAG = 1 << 29  # above the tags of `communication.exchange`
TAGS = 1 << 20
TOGETHER_S = 600.0  # limit on the leader's wait for workers that have finished the loop
AT_EXIT_S = 60.0  # limit at the leader's own exit
APART_S = 20.0  # limit where the loop was left early: the others may still be in theirs, waiting for this worker


class LastSaves:
    """Comparison in one worker, from the end of its loop to its exit. For the training thread."""

    def __init__(
        self, saves: Saves, communicator: Communicator, leader: int, silent: frozenset[int], together: bool
    ) -> None:
        """leader: its rank. silent: ranks that are not compared. together: the training is complete, so all workers leave their
        loops."""
        self._saves = saves
        self._communicator = communicator
        self._leader = leader
        self._limit_s = TOGETHER_S if together else APART_S
        self._given = 0  # messages sent
        self._heard: dict[int, list[dict[str, Any]]] = {}  # by rank, on the leader
        self._over: set[int] = set()  # ranks that send no more
        self._turned = threading.Condition()
        self._outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None
        if communicator.rank != leader:
            self._sender = threading.Thread(target=self._send, name="elasticd-saves", daemon=True)
            self._sender.start()
        else:
            for rank in range(communicator.size):
                if rank != leader and rank not in silent:
                    self._heard[rank] = []
                    threading.Thread(
                        target=self._hear, args=(rank,), name=f"elasticd-saves-{rank}", daemon=True
                    ).start()
        atexit.register(self._process_ends)

    def give(self, notes: Sequence[Note], look: list[Any] | None, counts: bool = True) -> None:
        """Report the files that this worker passes to `run.save`. On the leader, returns when all workers have reported the same.

        look: of `Looking.plain`. counts: False if the script has run code that other workers had run before.
        """
        own = {"notes": {name: note.plain() for name, note in by_file(notes).items()} if counts else None, "look": look}
        number, self._given = self._given, self._given + 1
        if self._communicator.rank != self._leader:
            self._outbox.put(msgspec.msgpack.encode(own))
            return
        late = self._wait(number + 1, self._limit_s)
        if late and notes:
            names = ", ".join(self._saves.names[rank] for rank in late)
            warnings.warn(
                f"{notes[0].name} is written without having been compared: {names} did not come there within "
                f"{self._limit_s:.0f} s. A loop is left early for a reason that all workers share: run.agree(value, any)",
                stacklevel=4,
            )
        if counts:
            self._compare(number, own)

    def _compare(self, number: int, own: Mapping[str, Any]) -> None:
        """Exit if another worker's message of this number differs."""
        told, looks = {self._leader: _notes(own)}, {self._leader: own["look"]}
        for rank, messages in self._heard.items():
            if number < len(messages):
                if messages[number].get("notes") is None and "end" not in messages[number]:
                    continue
                told[rank], looks[rank] = _notes(messages[number]), messages[number].get("look")
            elif messages and "end" in messages[-1]:
                told[rank], looks[rank] = {}, None
        verdict = judge_notes(told, self._communicator.size, frozenset())
        if verdict is not None:
            sys.stdout.flush()
            end_process(exits.DISAGREED, f"after the loop: {self._saves.sentence(verdict, told, looks)}")

    def _wait(self, messages: int, limit_s: float) -> list[int]:
        """Wait until each other worker has sent so many messages or sends no more. Returns the ranks that do neither in time."""
        deadline = time.monotonic() + limit_s
        with self._turned:
            while late := [
                rank for rank, heard in self._heard.items() if len(heard) < messages and rank not in self._over
            ]:
                if not self._turned.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    return late
        return []

    def _process_ends(self) -> None:
        failed = getattr(sys, "last_value", None) is not None
        if self._sender is not None:
            if not failed:  # after a failure, the exit of the process says enough
                self._outbox.put(END)
                self._sender.join(self._limit_s)
        elif not failed:
            self._wait(sys.maxsize, min(self._limit_s, AT_EXIT_S))
            for number in range(self._given, max(map(len, self._heard.values()), default=0)):
                self._compare(number, {"notes": {}, "look": None})

    # -- threads

    def _send(self) -> None:
        number, over = 0, False
        try:
            while not over:
                message = self._outbox.get()
                over = message == END
                send_bytes(self._communicator, [self._leader], _tag(number), message)
                number += 1
        except CommunicatorBroken:  # the leader is lost, and the job repeats all of this
            return

    def _hear(self, rank: int) -> None:
        number, over = 0, False
        try:
            while not over:
                message = msgspec.msgpack.decode(receive_bytes(self._communicator, rank, _tag(number)))
                number, over = number + 1, "end" in message
                with self._turned:
                    self._heard[rank].append(message)
                    self._turned.notify_all()
        except (CommunicatorBroken, msgspec.MsgspecError):
            pass
        with self._turned:
            self._over.add(rank)
            self._turned.notify_all()


def _tag(number: int) -> int:
    return FIRST_TAG + 2 * (number % TAGS)


def _notes(message: Mapping[str, Any]) -> dict[str, Note]:
    return {name: Note.of(name, plain) for name, plain in (message.get("notes") or {}).items()}
