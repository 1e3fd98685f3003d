"""What workers tell each other within a step, so that all of them know it before any of them applies the step.

Each step's gradient reduction is accompanied by a *word*: a few integers, of which every worker gets the greatest over all
workers (design: worker-runtime 4). The first is the generation that the leader proposes. The second says whether any worker has
more to tell. If so, all workers exchange *letters* in the same step: plain values of any size, one from each worker.

Whoever takes part in this is a `Participant`, under a name. The same script has the same participants on every worker. A worker
that hosts no virtual worker takes part, and so does a joiner, whose state arrives in this step.

The word is issued when this worker's part of the step is computed, at one fixed place among the reduction's collectives. So a
participant may tell what the loop body has done up to `optimizer.step()`. In most steps nobody has anything to tell, and the
word, which is there anyway, is all that it costs.

If a collective fails, the step is not applied, and nothing has been read. Some workers may have applied the step before others
noticed; the others then copy their state. So what is read becomes part of the state, or is the same when the step is repeated.
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

NOTHING = -(2**63)  # contributes nothing to a greatest value


@dataclass(frozen=True)
class Part:
    """This worker's part of a step."""

    step: int
    hosted: tuple[int, ...]  # virtual workers that it has run; none where their slices of a short step are empty
    joins: bool = False  # it has no state yet: that of the step before is on its way


class Participant(Protocol):
    """Something that has to be told within a step. All methods are called on the training thread."""

    name: str

    @property
    def slots(self) -> int:
        """How many integers of the word are its own: the same number on every worker, in each generation."""

    def numbers(self, part: Part) -> Sequence[int]:
        """Its integers, `slots` of them, 64 bits and signed. `NOTHING` contributes nothing."""

    def wants(self, part: Part) -> bool:
        """Has this worker a letter that all have to read in this step?"""

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Are letters wanted, seeing the greatest of each of its integers? All workers answer the same."""

    def letter(self, part: Part) -> Any:
        """Plain values (`plain`) from this worker, if letters are exchanged. None: it has nothing to tell."""

    def read(self, part: Part, letters: Sequence[Any]) -> None:
        """The letters of all workers, by rank, just before the update. A joiner's state is in its place by then.

        Raises UserError if the job cannot go on, on every worker alike."""


@runtime_checkable
class Carries(Protocol):
    """A participant that has more to send than fits into letters."""

    def carry(self, communicator: Communicator, part: Part, letters: Sequence[Any]) -> None:
        """All have exchanged letters: send what they announce. A joiner's state is not in its place yet. Raises
        CommunicatorBroken."""


class InBand:
    """The word and the letters of one step after the other. For the training thread."""

    def __init__(self, blame: Callable[[UserError, int], frozenset[int]] | None = None) -> None:
        """blame: takes the error that a participant has raised on reading a step's letters, and the step's number. Returns the
        ranks whose letters are the cause, and do not count; none where no worker in particular is the cause."""
        self._blame = blame
        self._participants: dict[str, Participant] = {}
        self._carriers: dict[str, Carries] = {}
        self._wants: list[Callable[[Part], bool]] = []  # of all
        self._numbers: list[Callable[[Part], Sequence[int]]] = []  # of those with integers in the word
        self._after: list[tuple[Callable[[Part, Sequence[int]], bool], slice]] = []  # the same, and where these are
        self._length = 2
        self._word: torch.Tensor | None = None
        self._greatest: list[int] = []  # of a worker that is alone: its own word
        self._work: dist.Work | None = None
        self._letters: list[dict[str, Any]] | None = None

    def add(self, participant: Participant) -> None:
        """Before the loop begins, in the same order on every worker."""
        assert participant.name not in self._participants, f"{participant.name} takes part twice"
        self._participants[participant.name] = participant
        self._wants.append(participant.wants)
        if isinstance(participant, Carries):
            self._carriers[participant.name] = participant
        self.enter()

    def enter(self) -> None:
        """A generation begins: lay out the word."""
        self._numbers.clear()
        self._after.clear()
        self._length = 2
        for participant in self._participants.values():
            if participant.slots:
                self._numbers.append(participant.numbers)
                end = self._length + participant.slots
                self._after.append((participant.wants_after, slice(self._length, end)))
                self._length = end

    def issue(self, communicator: Communicator, part: Part, proposal: int) -> None:
        """Send this worker's word. Raises CommunicatorBroken."""
        wants = False
        for each in self._wants:  # all are asked
            wants |= each(part)
        word = [proposal, wants]
        for numbers in self._numbers:
            word += numbers(part)
        assert len(word) == self._length, "a participant has another number of integers than its slots"
        self._letters = None
        if communicator.size == 1:
            self._word, self._greatest = None, word
            return
        self._word = torch.tensor(word, dtype=torch.int64)  # new memory: an abandoned operation owns the old
        self._work = communicator.all_reduce_max(self._word)

    def complete(self, communicator: Communicator, part: Part) -> int:
        """Wait for the word, and exchange letters if they are wanted. Returns the greatest proposal.

        Raises CommunicatorBroken."""
        greatest = self._greatest
        if self._word is not None:
            communicator.wait(self._work)
            self._work, greatest = None, self._word.tolist()
        asked = bool(greatest[1])
        for wants_after, place in self._after:  # all are asked
            asked |= wants_after(part, greatest[place])
        if asked:
            own = {name: each.letter(part) for name, each in self._participants.items()}
            self._letters = exchange(communicator, own)
            for name, carrier in self._carriers.items():
                carrier.carry(communicator, part, [letter.get(name) for letter in self._letters])
        return int(greatest[0])

    def read(self, part: Part) -> None:
        """Hand the letters that have come, if any, to those whom they are for. Raises what they raise."""
        letters, self._letters = self._letters, None
        if letters is not None:
            for name, each in self._participants.items():
                own = [letter.get(name) for letter in letters]
                try:
                    each.read(part, own)
                except UserError as error:
                    blamed = self._blame(error, part.step) if self._blame is not None else frozenset()
                    if not blamed:
                        raise
                    letters = [{} if rank in blamed else letter for rank, letter in enumerate(letters)]
                    each.read(part, [letter.get(name) for letter in letters])


def exchange(communicator: Communicator, own: dict[str, Any]) -> list[dict[str, Any]]:
    """Every worker's plain values, by rank. A collective. Raises CommunicatorBroken; UserError if `own` is not plain."""
    text = msgspec.msgpack.encode(pack(own, "a letter"))
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
        raise PeerError(f"a worker's letter cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise PeerError("a worker's letter is no mapping")
    return found
