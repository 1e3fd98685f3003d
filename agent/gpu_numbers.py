"""Numbers of GPUs on their server: bound to their UUIDs permanently, in `gpus.json` in the agent's state directory.

Theory of operation
-------------------
The driver counts the GPUs that it finds when the machine starts, in the order of their PCI addresses. A dead GPU is not
counted after a restart, and those behind it move up. The cluster's knowledge of GPU 5 would then apply to another GPU:
so the agent keeps its own numbers.

* A GPU that is seen for the first time gets the driver's number, or the lowest free one where that is taken.
* A GPU that does not answer, or is not counted any more, keeps its number and is *missing*. A GPU that does not answer does not
  identify itself; the driver's order does, if as many do not answer as are missing.
* A GPU is forgotten when another GPU is in its place (its PCI address). MIG instances are forgotten when their GPU answers and
  has them no more: operators make and remove them.

A record that cannot be read is an error for the operator to solve, since new numbers would be worse.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..protocol.errors import OperatorError
from .nvml import Card

FILE = "gpus.json"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that has been seen on this server."""

    number: int
    uuid: str
    name: str
    memory_bytes: int
    pci: str = ""
    parent: str = ""


@dataclass(frozen=True)
class Bound:
    """Assignment of numbers to GPUs."""

    cards: dict[int, Card]  # GPUs that answer, by number; and those that do not and have never been seen
    missing: dict[
        int, tuple[Known, Card | None]
    ]  # GPUs that have been seen, by number; the card that fails in its stead, if any

    @property
    def known(self) -> tuple[Known, ...]:
        """The GPUs to record."""
        found = {number: known for number, (known, _) in self.missing.items()}
        for number, card in self.cards.items():
            if card.uuid:
                found[number] = Known(
                    number=number,
                    uuid=card.uuid,
                    name=card.name,
                    memory_bytes=card.memory_bytes,
                    pci=card.pci,
                    parent=card.parent,
                )
        return tuple(found[number] for number in sorted(found))


def bind(known: Iterable[Known], cards: Sequence[Card]) -> Bound:
    """Assign a number to each GPU. Known GPUs that are not forgotten keep theirs."""
    answering = {card.uuid: card for card in cards if card.uuid}
    wholes = {card.parent or card.uuid for card in answering.values()}
    occupied = {card.pci for card in answering.values() if card.pci}
    kept = [
        each
        for each in known
        if each.uuid in answering or not (each.parent in wholes if each.parent else each.pci in occupied)
    ]
    numbers = {each.uuid: each.number for each in kept}
    missing = sorted((each for each in kept if each.uuid not in answering), key=lambda each: (each.pci, each.number))
    failing = [card for card in cards if not card.uuid]
    exact = len(failing) == len(missing)
    unknown = failing[len(missing) :]  # more GPUs fail to answer than are missing
    taken = set(numbers.values())
    bound: dict[int, Card] = {}
    for position, card in enumerate(cards):
        if not card.uuid and card not in unknown:
            continue  # it is one of the missing
        number = numbers.get(card.uuid) if card.uuid else None
        if number is None:
            number = position if position not in taken else next(n for n in range(len(taken) + 1) if n not in taken)
            taken.add(number)
        bound[number] = card
    stead: Sequence[Card | None] = failing if exact else [None] * len(missing)
    return Bound(bound, {each.number: (each, card) for each, card in zip(missing, stead, strict=True)})


def load(state: Path) -> tuple[Known, ...]:
    """Return the recorded GPUs. Raises OperatorError if the record cannot be read."""
    path = state / FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=tuple[Known, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        raise OperatorError(
            f"{path} is not the record of this server's GPUs ({error}): bring it back, or remove it and they are numbered anew"
        ) from None
    if len({each.number for each in found}) < len(found) or len({each.uuid for each in found}) < len(found):
        raise OperatorError(f"{path}: two GPUs have the same number or UUID")
    return found


def save(state: Path, known: tuple[Known, ...]) -> None:
    """Write the record atomically and durably. Raises OperatorError."""
    path = state / FILE
    data = msgspec.json.format(msgspec.json.encode(known)) + b"\n"
    temporary = path.with_name(f"{FILE}.new")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OperatorError(f"{path} cannot be written: {error.strerror}") from None
