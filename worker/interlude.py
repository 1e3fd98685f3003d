"""The script's own code between two steps: where it runs, the values that it agrees on, and which of these survive a
loss.

Such code runs between two epochs, at an epoch's beginning, and in functions of `run.every`. It runs on every worker, in
the same state. A result on which the workers agree there (`run.evaluate`, `run.agree`) is kept as an *agreed value*: a
value, by place and by its number at that place. Agreed values are a part of the state. A worker that has missed a step
has still to run code that the others have completed. It gets their state and their agreed values, and finds the same
values (`AgreedValues.find`).

The middle of such code is part of no state: the script may have made half of its changes. If the job is preempted
there, the saved state is the one in which the code began (`Interlude`), and the code runs again after the next start,
with the values that have been settled already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

PLACES_KEPT = 64
BYTES_KEPT = 1 << 22
FEWEST_PLACES = 4  # kept in any size: a worker that has missed a step still has to come to them


@dataclass(frozen=True)
class BoundaryPoint:
    """Place of code between two steps: `kind` is "begin" or "end" of epoch `number`, or "after" so many steps."""

    kind: str
    number: int

    @property
    def key(self) -> str:
        return f"{self.kind} {self.number}"

    def __str__(self) -> str:
        return f"after {self.number} steps" if self.kind == "after" else f"at the {self.kind} of epoch {self.number}"


class AgreedValues:
    """Agreed results, by place and number; the newest places last."""

    def __init__(self) -> None:
        self._found: dict[str, list[bytes]] = {}
        self.decisions = 0  # number of decisions since the last applied step

    def find(self, place: BoundaryPoint, number: int) -> bytes | None:
        """Return the result of the call with this number at this place; None if it is not known."""
        found = self._found.get(place.key, [])
        return found[number] if number < len(found) else None

    def record(self, place: BoundaryPoint, number: int, value: bytes, decision: bool) -> None:
        """Record the result of the call with this number. decision: the result could have been another value."""
        found = self._found.setdefault(place.key, [])
        assert len(found) == number, "agreed values come in their order"
        found.append(value)
        self.decisions += decision
        total = sum(len(each) for values in self._found.values() for each in values)
        while len(self._found) > FEWEST_PLACES and (len(self._found) > PLACES_KEPT or total > BYTES_KEPT):
            # A worker that joins in the middle of an epoch runs its beginning, however many steps there have been
            # since.
            steps = [key for key in self._found if key.startswith("after ")]
            oldest = steps[0] if len(steps) > FEWEST_PLACES else next(iter(self._found))
            total -= sum(len(each) for each in self._found.pop(oldest))

    def step_applied(self) -> None:
        self.decisions = 0

    def plain(self) -> dict[str, Any]:
        """Return plain values for a header."""
        return {"decisions": self.decisions, "found": [[key, list(values)] for key, values in self._found.items()]}

    def take(self, plain: Mapping[str, Any]) -> None:
        """Take over the agreed values of another worker's state."""
        self.decisions = int(plain.get("decisions", 0))
        self._found = {key: list(values) for key, values in plain.get("found", [])}


class Interlude:
    """Code between two steps that has begun, and the state in which it began."""

    def __init__(self, header: dict[str, Any] | None, tensors: Sequence[torch.Tensor], after_step: bool) -> None:
        """header, tensors: of that state. header None: unknown."""
        self._header = header
        self._tensors = tensors
        self._versions = self._now()
        self._after_step = after_step

    def _now(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]

    @property
    def interruptible(self) -> bool:
        """Whether the state in which the code began can still be saved: not once the code has changed one of its
        tensors.
        """
        return self._header is not None and self._versions == self._now()

    def header(self, counters: Mapping[str, int], agreed_values: AgreedValues) -> dict[str, Any]:
        """Return the header of the state in which the code began, with everything that has been settled since."""
        assert self._header is not None
        own = {"owes_functions": int(self._after_step)}
        return {
            **self._header,
            "counters": {**counters, **self._header["counters"], **own},  # a deferred epoch in the header wins
            "settlements": agreed_values.plain(),
        }


def end_of(header: Mapping[str, Any]) -> int | None:
    """Return the number of steps of the whole job, if its script has decided to stop; else None."""
    end = header["counters"].get("end")
    return None if end is None else int(end)
