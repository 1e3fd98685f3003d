"""Values of each virtual worker that travel with its step: every worker has all of them before the update.

A loop body shares a loss or a count of tokens (`Run.share`). The step's in-band exchange carries the values of all
virtual workers to every worker, also to joining workers and to those that host no virtual worker, as floating-point
numbers of 64 bits. Whatever is computed from these values is computed in the order of the virtual workers, so the
result is the same for any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..protocol.errors import UserError
from .inband import Part

Number = int | float | torch.Tensor


@dataclass(frozen=True)
class Shared:
    """Values that virtual workers shared under one name in one step, in the order of virtual workers.

    Virtual workers without a sample in the step are left out.
    """

    virtual_workers: tuple[int, ...]
    values: tuple[float, ...]
    weights: tuple[float, ...]  # by samples, as the gradients are weighted: 1.0 each in a full step

    @property
    def total(self) -> float:
        """The sum, rounded once."""
        return math.fsum(self.values)

    @property
    def mean(self) -> float:
        """The mean, weighted by samples."""
        weighted = [value * weight for value, weight in zip(self.values, self.weights, strict=True)]
        return math.fsum(weighted) / math.fsum(self.weights)


class Sharing:
    """The shared values of a step. Takes part in the step's exchange (`inband.Participant`)."""

    name = "shared"
    slots = 0

    def __init__(self) -> None:
        self.values: dict[str, Shared] = {}  # of the step that was read last
        self._own: dict[int, tuple[float, dict[str, Number]]] = {}

    def begin(self) -> None:
        """Begin a step, or begin it again: discard the values."""
        self.values = {}
        self._own = {}

    def tell(self, virtual_worker: int, weight: float, values: Mapping[str, Any]) -> None:
        """Keep values of a virtual worker for this step's payload. Raises UserError for a value that is no number."""
        told = self._own.setdefault(virtual_worker, (weight, {}))[1]
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                value = value.detach().clone()  # read when the step's part is complete: a GPU may still compute it
            elif isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(f"share({name}=...) takes a number or a tensor of one element, not {_described(value)}")
            told[name] = value

    def numbers(self, part: Part) -> Sequence[int]:
        """Return no integers: values travel in payloads."""
        return ()

    def wants(self, part: Part) -> bool:
        """Return whether a body of this worker has shared a value."""
        return bool(self._own)

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Never called, since there are no integers."""
        return False

    def payload(self, part: Part) -> Any:
        """Return the values of this worker's bodies; a body that shared none has an empty mapping."""
        bodies = {virtual_worker: self._own.get(virtual_worker, (1.0, {})) for virtual_worker in part.hosted}
        return [
            [virtual_worker, weight, {name: float(value) for name, value in told.items()}]
            for virtual_worker, (weight, told) in bodies.items()
        ]

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Take over the values of all workers.

        Raises UserError if one virtual worker shared a name that another did not.
        """
        bodies = sorted((body for payload in payloads for body in payload or ()), key=lambda body: int(body[0]))
        names = sorted({name for _, _, told in bodies for name in told})
        for name in names:
            lacking = [virtual_worker for virtual_worker, _, told in bodies if name not in told]
            if lacking:
                raise UserError(
                    f"share({name}=...) was called in step {part.step}, but not for virtual worker {lacking[0]}: "
                    "call it in every loop body of a step, or in none"
                )
        order = tuple(virtual_worker for virtual_worker, _, _ in bodies)
        weights = tuple(weight for _, weight, _ in bodies)
        self.values = {name: Shared(order, tuple(told[name] for _, _, told in bodies), weights) for name in names}


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.numel()} elements"
    return f"a {type(value).__name__}"
