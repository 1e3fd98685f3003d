"""The script's own code between two steps: where it runs, what it has found out there, and what of it has to outlive a loss.

Such code runs between two epochs, at an epoch's beginning, and in functions that `run.every` was given. It runs on every worker,
in the same state. What the workers find out there together (`run.evaluate`, `run.agree`) is kept as a *settlement*: the value, by
place and by its number there. Settlements are a part of the state. A worker whose script has still to run code that the others
are past, since it has missed a step, gets their state and their settlements, and finds the same values (`Settlements.find`).

Code that has begun is part of no state: the script may have changed half of what it is to change. If the job is preempted in the
middle, what is saved is the state in which that code began (`Interlude`), and it runs again after the next start, with what has
been settled already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

PLACES_KEPT = 64
BYTES_KEPT = 1 << 22
FEWEST_PLACES = 4  # whatever they take: a worker that has missed a step still has to come to them


@dataclass(frozen=True)
class Place:
    """Where code between two steps runs: `kind` is "begin" or "end" of epoch `number`, or "after" so many steps."""

    kind: str
    number: int

    @property
    def key(self) -> str:
        return f"{self.kind} {self.number}"

    def __str__(self) -> str:
        return f"after {self.number} steps" if self.kind == "after" else f"at the {self.kind} of epoch {self.number}"


class Settlements:
    """What was found out together, by place and number; the newest places last."""

    def __init__(self) -> None:
        self._found: dict[str, list[bytes]] = {}
        self.decisions = 0  # since the last applied step

    def find(self, place: Place, number: int) -> bytes | None:
        """What the call with this number at this place came to, if anybody has told."""
        found = self._found.get(place.key, [])
        return found[number] if number < len(found) else None

    def record(self, place: Place, number: int, value: bytes, decision: bool) -> None:
        """The call with this number has come to this. decision: it could have been another value."""
        found = self._found.setdefault(place.key, [])
        assert len(found) == number, "settlements come in their order"
        found.append(value)
        self.decisions += decision
        total = sum(len(each) for values in self._found.values() for each in values)
        while len(self._found) > FEWEST_PLACES and (len(self._found) > PLACES_KEPT or total > BYTES_KEPT):
            # Whoever joins in the middle of an epoch runs its beginning, however many steps there have been since.
            steps = [key for key in self._found if key.startswith("after ")]
            oldest = steps[0] if len(steps) > FEWEST_PLACES else next(iter(self._found))
            total -= sum(len(each) for each in self._found.pop(oldest))

    def step_applied(self) -> None:
        self.decisions = 0

    def plain(self) -> dict[str, Any]:
        """For a header."""
        return {"decisions": self.decisions, "found": [[key, list(values)] for key, values in self._found.items()]}

    def take(self, plain: Mapping[str, Any]) -> None:
        """Another's state has come, with its settlements."""
        self.decisions = int(plain.get("decisions", 0))
        self._found = {key: list(values) for key, values in plain.get("found", [])}


class Interlude:
    """Code between two steps that has begun, and the state in which it has."""

    def __init__(self, header: dict[str, Any] | None, tensors: Sequence[torch.Tensor], after_step: bool) -> None:
        """header: of that state; None: it is not known. tensors: those of it."""
        self._header = header
        self._tensors = tensors
        self._versions = self._now()
        self._after_step = after_step

    def _now(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]

    @property
    def interruptible(self) -> bool:
        """Can the state in which it began still be saved? Not once the code has changed a tensor of it."""
        return self._header is not None and self._versions == self._now()

    def header(self, counters: Mapping[str, int], settlements: Settlements) -> dict[str, Any]:
        """Of the state in which it began, with all that has been settled since."""
        assert self._header is not None
        own = {"owes_functions": int(self._after_step)}
        return {
            **self._header,
            "counters": {**counters, **self._header["counters"], **own},  # a deferred epoch is the header's
            "settlements": settlements.plain(),
        }


def end_of(header: Mapping[str, Any]) -> int | None:
    """Steps of the whole job, where its script has decided that."""
    end = header["counters"].get("end")
    return None if end is None else int(end)
