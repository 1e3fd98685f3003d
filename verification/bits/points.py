"""Points of a worker's life at which it can be killed, and a record of its progress.

The product does not contain these points: public methods of its classes are wrapped in the worker's process before the training
begins. The driver arms a worker by writing to the worker's slot of a board, a file mapped by both: the worker kills itself when
it reaches the given point for the n-th time. A worker records its progress in the same slot, and in a journal that survives its
death.
"""

from __future__ import annotations

import enum
import inspect
import mmap
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLOTS = 1024
UNSETTLED = 0.3  # of a leader's steps, in which it wants another hosting
FIELDS = 4  # of a slot, 8 bytes each: last applied step + 1, armed point, passes left, fired point


class Point(enum.Enum):
    """Place where a worker is killed."""

    STARTING = "starting"
    BUILDING = "building a communicator"
    BUILT = "communicator built"
    STEP = "step begins"
    REDUCTION = "in the reduction"
    REDUCING = "reduction under way"
    BUFFERS = "sharing buffers"
    DECIDED = "commit read"
    COMMITTING = "telling newcomers of the commit"
    SWITCHED = "switched"
    SENDING = "sending state"
    RECEIVING = "receiving state"
    ADOPTING = "taking the state over"
    ADOPTED = "has the state"
    TRAILING = "handing over the script's values"
    UPDATE = "before the update"
    APPLIED = "step applied"
    RECOVERING = "waiting after a loss"
    RECOVERED = "going on after a loss"
    LEAVING = "leaving"
    FINISHING = "at the end of the loop"
    ANY_TIME = "at any time"  # by the driver's SIGKILL


POINTS = tuple(Point)


class Board:
    """One slot of numbers per worker, in shared memory."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(SLOTS * FIELDS * 8)
            self._numbers = memoryview(mmap.mmap(file.fileno(), SLOTS * FIELDS * 8)).cast("q")

    def furthest(self) -> int:
        """Return the greatest step that a worker has applied; -1 for none."""
        return max(self._numbers[::FIELDS]) - 1

    def has_applied(self, slot: int) -> bool:
        """Return whether the worker of `slot` has applied a step."""
        return self._numbers[slot * FIELDS] > 0

    def set_applied(self, slot: int, step: int) -> None:
        self._numbers[slot * FIELDS] = step + 1

    def arm(self, slot: int, point: Point, passes: int) -> None:
        """Arm the worker of `slot`: it dies at its `passes`-th arrival at `point` from now."""
        self._numbers[slot * FIELDS + 2] = passes
        self._numbers[slot * FIELDS + 1] = POINTS.index(point) + 1

    def disarm(self, slot: int) -> None:
        self._numbers[slot * FIELDS + 1] = 0

    def armed(self, slot: int) -> bool:
        return bool(self._numbers[slot * FIELDS + 1]) and not self._numbers[slot * FIELDS + 3]

    def fired(self, slot: int) -> Point | None:
        """Return the point where the armed worker of `slot` has died; None if it has not."""
        number = self._numbers[slot * FIELDS + 3]
        return POINTS[number - 1] if number else None

    def passes(self, slot: int, point: Point) -> bool:
        """Count an arrival of the worker at `point`. Returns whether it is to die there."""
        place = slot * FIELDS
        if self._numbers[place + 1] != POINTS.index(point) + 1:
            return False
        self._numbers[place + 2] -= 1
        if self._numbers[place + 2] > 0:
            return False
        self._numbers[place + 3] = POINTS.index(point) + 1
        return True


@dataclass(frozen=True)
class Entry:
    """One line of a journal. what: "began", "applied", or "hosted": other virtual workers from the next step on."""

    time_s: float
    what: str
    generation: int
    step: int


class Journal:
    """Record of one worker's steps, line by line."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.begun = (0, -1)  # generation and number of the worker's present or last step

    def note(self, what: str, generation: int, step: int) -> None:
        if what == "began":
            self.begun = generation, step
        os.write(self._descriptor, f"{time.monotonic():.6f} {what} {generation} {step}\n".encode())


def read_journal(path: Path) -> list[Entry]:
    """Return all entries of a journal, in order of time."""
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines()]
    return [Entry(float(when), what, int(generation), int(step)) for when, what, generation, step in lines]


class Fuse:
    """Kills this process at the point armed in its slot."""

    def __init__(self, board: Board, slot: int) -> None:
        self.board = board
        self.slot = slot

    def at(self, point: Point) -> None:
        if self.board.passes(self.slot, point):
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # until the signal takes effect


# ---------------------------------------------------------------------------------------------------------- wrapping


def wrap(
    owner: type, name: str, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> None:
    """Wrap a method: call `before(*arguments)` before each call, `after(result)` after it."""
    static = inspect.getattr_static(owner, name)
    function = static.__func__ if isinstance(static, classmethod) else static

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            before(*arguments)
        result = function(*arguments, **named)
        if after is not None:
            after(result)
        return result

    setattr(owner, name, classmethod(wrapped) if isinstance(static, classmethod) else wrapped)


def install(fuse: Fuse, journal: Journal) -> None:
    """Wrap the product's classes with the points, in this process."""
    from elasticd.protocol.codec import Codec
    from elasticd.protocol.messages import Commit
    from elasticd.worker import events as e
    from elasticd.worker.communication.communicator import Communicator
    from elasticd.worker.control import ClusterControl
    from elasticd.worker.gradients.update import Update
    from elasticd.worker.state.replication import Replication
    from elasticd.worker.state.training_state import TrainingState
    from elasticd.worker.training.generation import Generation

    def at(point: Point) -> Callable[..., None]:
        return lambda *_: fuse.at(point)

    wrap(Communicator, "build", at(Point.BUILDING), at(Point.BUILT))
    for name in ("all_to_all", "all_gather", "all_reduce"):
        wrap(Communicator, name, at(Point.REDUCTION), at(Point.REDUCING))
    wrap(Communicator, "broadcast", at(Point.BUFFERS))
    wrap(Communicator, "send", at(Point.SENDING))
    wrap(Communicator, "receive", at(Point.RECEIVING))
    wrap(TrainingState, "adopt", at(Point.ADOPTING))
    wrap(TrainingState, "finish", None, at(Point.ADOPTED))
    wrap(Replication, "send_trailer", at(Point.TRAILING))
    wrap(Replication, "receive_trailer", at(Point.TRAILING))
    wrap(Update, "apply", at(Point.UPDATE))
    wrap(Generation, "rehost", lambda *_: journal.note("hosted", *journal.begun))

    before = {e.Arrived: Point.STARTING, e.CollectiveFailed: Point.RECOVERING, e.LoopEnded: Point.FINISHING}
    recovers = False  # the training thread's last report was a failure
    noted = -1

    def telling(control: ClusterControl, fact: object) -> None:
        nonlocal recovers
        if isinstance(fact, e.ThreadFact):
            recovers = isinstance(fact, e.CollectiveFailed)
        if type(fact) in before:
            fuse.at(before[type(fact)])
        if isinstance(fact, e.WordRead) and fact.generation:
            fuse.at(Point.DECIDED)

    tell = ClusterControl.tell

    def told(control: ClusterControl, fact: e.Event) -> None:
        nonlocal noted
        telling(control, fact)
        tell(control, fact)
        if isinstance(fact, e.StepApplied | e.ValuesExchanged):
            control.catch_up()
            applied = control.machine.applied
            if applied is not None and applied != noted:  # a joiner has its whole state only with the registered values
                noted = applied
                fuse.board.set_applied(fuse.slot, applied)
                journal.note("applied", control.machine.generation, applied)
        if isinstance(fact, e.StepApplied):
            fuse.at(Point.APPLIED)

    generation = 0  # last one entered

    def instructed(instruction: object) -> None:
        nonlocal generation
        if isinstance(instruction, e.EnterGeneration):
            generation = instruction.roster.generation
            fuse.at(Point.RECOVERED if recovers else Point.SWITCHED)
        elif isinstance(instruction, e.RunStep | e.JoinStep):
            fuse.at(Point.STEP)
            journal.note("began", generation, instruction.step)
        elif isinstance(instruction, e.ExitScript):
            fuse.at(Point.LEAVING)

    def encoding(codec: Codec[Any], message: object) -> None:
        if isinstance(message, Commit):
            fuse.at(Point.COMMITTING)

    setattr(ClusterControl, "tell", told)  # noqa: B010
    wrap(ClusterControl, "next", None, instructed)
    wrap(Codec, "encode", encoding)


def unsettle(rng: random.Random) -> None:
    """Let leaders in this process want another hosting every few steps, drawn at random, whatever the workers' paces are."""
    from elasticd.worker.hosting import balanced
    from elasticd.worker.training.stragglers import Stragglers

    def hosts(stragglers: Stragglers, ranges: tuple[range, ...]) -> None:
        stragglers.wanted = ()
        virtual_workers = sum(map(len, ranges))
        if rng.random() < UNSETTLED and 1 < len(ranges) <= virtual_workers:
            stragglers.wanted = balanced(virtual_workers, [rng.uniform(1.0, 5.0) for _ in ranges])

    setattr(Stragglers, "hosts", hosts)  # noqa: B010
    setattr(Stragglers, "heard", lambda *_: None)  # noqa: B010
