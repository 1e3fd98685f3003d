"""Messages between workers within a step: every worker has all of them before any worker applies the step.

Each step's gradient reduction is accompanied by a control *word*: a few integers, of each of which every worker gets the maximum
over all workers (design: worker-runtime 4). The first is the generation that the leader proposes. The second says whether any
worker has more to send. If so, all workers exchange *payloads* in the same step: plain values of any size, one from each worker.

Each sender of such values is a `Participant`, under a name. The same script has the same participants on every worker. A worker
that hosts no virtual worker takes part, and so does a joiner, whose state arrives in this step.

The word is issued when this worker's part of the step is computed, at one fixed place among the reduction's collectives. So a
participant may report what the loop body has done up to `optimizer.step()`. In most steps no participant has a payload, and the
only cost is the word, which the commit of a generation needs in any case.

If a collective fails, the step is not applied, and no payload has been read. Some workers may have applied the step before others
noticed the failure; the others then copy their state. So a value that is read has to become part of the state, or be the same
when the step is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch
import torch.distributed as dist

from ..protocol.errors import PeerError, UserError
from .communication.communicator import Communicator
from .plain import pack, unpack

NOTHING = -(2**63)  # contributes nothing to a maximum


@dataclass(frozen=True)
class Part:
    """This worker's part of a step."""

    step: int
    hosted: tuple[int, ...]  # virtual workers whose bodies it has run; in a short step, those that have samples
    joins: bool = False  # the worker has no state yet: that of the step before is on its way


def never(participant: Any, part: Part) -> bool:
    """Return False: the `wants` of participants whose integers are enough, or tell when payloads are wanted."""
    return False


class Participant(Protocol):
    """A sender and receiver of values within a step. All methods are called on the training thread."""

    name: str

    @property
    def slots(self) -> int:
        """Number of this participant's integers in the word: the same on every worker of a generation."""

    def numbers(self, part: Part) -> Sequence[int]:
        """Return this participant's `slots` integers, signed and of 64 bits. `NOTHING` contributes nothing."""

    def wants(self, part: Part) -> bool:
        """Return whether this worker has a payload that all workers have to read in this step."""

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Return whether payloads are wanted, given the maxima of this participant's integers. Equal on all workers."""

    def payload(self, part: Part) -> Any:
        """Return this worker's payload, plain values (`plain`), when payloads are exchanged. None: it has nothing to send."""

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Read the payloads of all workers, by rank, just before the update. A joiner has its state by then.

        Raises UserError, on every worker alike, if the job cannot go on."""


@runtime_checkable
class Carries(Protocol):
    """A participant that has more to send than fits into payloads."""

    def carry(self, communicator: Communicator, part: Part, payloads: Sequence[Any]) -> None:
        """Send and receive the data that the exchanged payloads announce. A joiner does not have its state yet.

        Raises CommunicatorBroken."""


@runtime_checkable
class Compares(Protocol):
    """A participant whose integers only show whether workers agree: one that is alone is not asked for them."""

    compares: bool


class InBand:
    """The word and the payloads of one step after the other. For the training thread."""

    def __init__(self, blame: Callable[[UserError, int], frozenset[int]] | None = None) -> None:
        """blame: takes the error that a participant has raised on reading a step's payloads, and the step's number. Returns the
        ranks whose payloads are the cause, and are ignored; an empty set if no particular worker is the cause."""
        self._blame = blame
        self._participants: dict[str, Participant] = {}
        self._carriers: dict[str, Carries] = {}
        self._wants: list[Callable[[Part], bool]] = []  # of participants that ever want payloads of their own accord
        self._numbers: list[Callable[[Part], Sequence[int]]] = []  # of participants with integers in the word
        self._after: list[tuple[Callable[[Part, Sequence[int]], bool], slice]] = []  # likewise, with their places
        self._length = 2
        self._word: torch.Tensor | None = None
        self._greatest: list[int] = []  # the own word of a worker that is alone
        self._work: dist.Work | None = None
        self._payloads: list[dict[str, Any]] | None = None

    def add(self, participant: Participant) -> None:
        """Add a participant: before the loop begins, in the same order on every worker."""
        assert participant.name not in self._participants, f"{participant.name} takes part twice"
        self._participants[participant.name] = participant
        if type(participant).wants is not never:
            self._wants.append(participant.wants)
        if isinstance(participant, Carries):
            self._carriers[participant.name] = participant
        self.enter()

    def enter(self, alone: bool = False) -> None:
        """Begin a generation: lay out the word. alone: of one worker."""
        self._numbers.clear()
        self._after.clear()
        self._length = 2
        for participant in self._participants.values():
            if participant.slots and not (alone and isinstance(participant, Compares)):
                self._numbers.append(participant.numbers)
                end = self._length + participant.slots
                self._after.append((participant.wants_after, slice(self._length, end)))
                self._length = end

    def issue(self, communicator: Communicator, part: Part, proposal: int) -> None:
        """Send this worker's word. Raises CommunicatorBroken."""
        wants = False
        for each in self._wants:  # no short circuit: each call may have side effects
            wants |= each(part)
        word = [proposal, wants]
        for numbers in self._numbers:
            word += numbers(part)
        assert len(word) == self._length, "a participant has another number of integers than its slots"
        self._payloads = None
        if communicator.size == 1:
            self._word, self._greatest = None, word
            return
        self._word = torch.tensor(word, dtype=torch.int64)  # new memory: an abandoned operation owns the old
        self._work = communicator.all_reduce_max(self._word)

    def complete(self, communicator: Communicator, part: Part) -> int:
        """Wait for the word, and exchange payloads if any are wanted. Returns the greatest proposed generation.

        Raises CommunicatorBroken."""
        greatest = self._greatest
        if self._word is not None:
            communicator.wait(self._work)
            self._work, greatest = None, self._word.tolist()
        asked = bool(greatest[1])
        for wants_after, place in self._after:  # no short circuit: calls have side effects, as in `Clipping`
            asked |= wants_after(part, greatest[place])
        if asked:
            own = {name: each.payload(part) for name, each in self._participants.items()}
            self._payloads = exchange(communicator, own)
            for name, carrier in self._carriers.items():
                carrier.carry(communicator, part, [payload.get(name) for payload in self._payloads])
        return int(greatest[0])

    def read(self, part: Part) -> None:
        """Pass the exchanged payloads, if any, to their participants. Raises UserError, as a participant does."""
        payloads, self._payloads = self._payloads, None
        if payloads is not None:
            for name, each in self._participants.items():
                own = [payload.get(name) for payload in payloads]
                try:
                    each.read(part, own)
                except UserError as error:
                    blamed = self._blame(error, part.step) if self._blame is not None else frozenset()
                    if not blamed:
                        raise
                    payloads = [{} if rank in blamed else payload for rank, payload in enumerate(payloads)]
                    each.read(part, [payload.get(name) for payload in payloads])


def exchange(communicator: Communicator, own: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the plain values of all workers, by rank. A collective.

    Raises CommunicatorBroken; UserError if `own` is not plain; PeerError for malformed values of another worker."""
    text = msgspec.msgpack.encode(pack(own, "a payload"))
    if communicator.size == 1:
        return [_decoded(text)]
    sizes = torch.zeros(communicator.size, dtype=torch.int64)
    communicator.wait(communicator.all_gather(sizes, torch.tensor([len(text)], dtype=torch.int64)))
    longest = int(sizes.max())
    padded = torch.frombuffer(bytearray(text.ljust(longest, b"\0")), dtype=torch.uint8)
    table = torch.zeros(communicator.size * longest, dtype=torch.uint8)
    communicator.wait(communicator.all_gather(table, padded))
    rows = table.view(communicator.size, longest).numpy()
    return [_decoded(rows[rank, : int(size)].tobytes()) for rank, size in enumerate(sizes)]


def _decoded(text: bytes) -> dict[str, Any]:
    try:
        found = unpack(msgspec.msgpack.decode(text))
    except msgspec.MsgspecError as error:
        raise PeerError(f"a worker's payload cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise PeerError("a worker's payload is no mapping")
    return found
