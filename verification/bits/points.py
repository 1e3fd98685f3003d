"""Points of a worker's life at which it can be made to die, and what it tells of itself while it lives.

The product knows nothing of this: public methods of its classes are wrapped in the worker's process, before the training
begins. The driver arms a worker by writing to its slot of a board, a file that both have in memory: "die when you come to this
point for the n-th time". A worker tells its progress in the same slot, and in a journal that its death leaves intact.
"""

from __future__ import annotations

import enum
import inspect
import mmap
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLOTS = 1024
FIELDS = 4  # of a slot, 8 bytes each: applied + 1, armed point, passes that are left, fired point


class Point(enum.Enum):
    """Where a worker dies."""

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
    ANY_TIME = "at any time"  # the driver's SIGKILL


POINTS = tuple(Point)


class Board:
    """One slot of numbers for each worker, in memory that all processes share."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(SLOTS * FIELDS * 8)
            self._numbers = memoryview(mmap.mmap(file.fileno(), SLOTS * FIELDS * 8)).cast("q")

    def furthest(self) -> int:
        """The greatest step that anybody has applied; -1: none."""
        return max(self._numbers[::FIELDS]) - 1

    def has_applied(self, slot: int) -> bool:
        """Whether the worker of `slot` has ever applied a step."""
        return self._numbers[slot * FIELDS] > 0

    def set_applied(self, slot: int, step: int) -> None:
        self._numbers[slot * FIELDS] = step + 1

    def arm(self, slot: int, point: Point, passes: int) -> None:
        """Let the worker of `slot` die when it comes to `point` for that time, counted from now."""
        self._numbers[slot * FIELDS + 2] = passes
        self._numbers[slot * FIELDS + 1] = POINTS.index(point) + 1

    def disarm(self, slot: int) -> None:
        self._numbers[slot * FIELDS + 1] = 0

    def armed(self, slot: int) -> bool:
        return bool(self._numbers[slot * FIELDS + 1]) and not self._numbers[slot * FIELDS + 3]

    def fired(self, slot: int) -> Point | None:
        """Where the worker of `slot` has died, if it has died of being armed."""
        number = self._numbers[slot * FIELDS + 3]
        return POINTS[number - 1] if number else None

    def passes(self, slot: int, point: Point) -> bool:
        """The worker comes to `point`. Whether it is to die there."""
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
    """A line of a journal. what: "began" or "applied"."""

    time_s: float
    what: str
    generation: int
    step: int


class Journal:
    """What one worker has done, line by line."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.begun = (0, -1)  # generation and step of the step that this worker is in, or has last been in

    def note(self, what: str, generation: int, step: int) -> None:
        if what == "began":
            self.begun = generation, step
        os.write(self._descriptor, f"{time.monotonic():.6f} {what} {generation} {step}\n".encode())


def read_journal(path: Path) -> list[Entry]:
    """All entries, in order of time."""
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines()]
    return [Entry(float(when), what, int(generation), int(step)) for when, what, generation, step in lines]


class Fuse:
    """Makes this process die at the point that its slot says."""

    def __init__(self, board: Board, slot: int) -> None:
        self.board = board
        self.slot = slot

    def at(self, point: Point) -> None:
        if self.board.passes(self.slot, point):
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # for the moment until it takes effect


# ---------------------------------------------------------------------------------------------------------- wrapping


def wrap(
    owner: type, name: str, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> None:
    """Call `before(*arguments)` before each call of a method, `after(result)` after it."""
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
    """Put the points into the product's classes, in this process."""
    from elasticd.protocol.codec import Codec
    from elasticd.protocol.messages import Commit
    from elasticd.worker import events as e
    from elasticd.worker.communication.communicator import Communicator
    from elasticd.worker.control import ClusterControl
    from elasticd.worker.gradients.update import Update
    from elasticd.worker.state.replication import Replication
    from elasticd.worker.state.training_state import TrainingState

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

    before = {e.Arrived: Point.STARTING, e.CollectiveFailed: Point.RECOVERING, e.LoopEnded: Point.FINISHING}
    recovers = False  # the last thing that the training thread told is a failure
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
            applied = control.machine.applied
            if applied is not None and applied != noted:  # a joiner has all of it only with the registered values
                noted = applied
                fuse.board.set_applied(fuse.slot, applied)
                journal.note("applied", control.machine.generation, applied)
        if isinstance(fact, e.StepApplied):
            fuse.at(Point.APPLIED)

    generation = 0  # the last one entered

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
