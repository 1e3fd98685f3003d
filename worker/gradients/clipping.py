"""What happens to the global gradient before the update: division by a count of items, clipping to a norm.

A loop body may say itself how to clip (`Run.clip`). It runs once for each virtual worker, and the gradient that it means is there
when the last of them is done; so its limit is kept until then. It travels in the step's word, as the bits of a floating-point
number: a worker that has run no body in this step clips like the others.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

from ...protocol.errors import UserError
from ..inband import NOTHING, Part


class Clipping:
    """The limit of one step after the other, and the norm before clipping. Takes part in the step's exchange."""

    name = "clipping"
    slots = 2

    def __init__(self, max_norm: float | None = None) -> None:
        """max_norm: in every step, whatever bodies say."""
        self._always = max_norm
        self._own: dict[int, float] = {}  # what this worker's bodies want in this step, by virtual worker
        self._asked: float | None = None  # of everybody's

    def begin(self) -> None:
        """A step begins, or begins again."""
        self._own = {}
        self._asked = None

    def ask(self, virtual_worker: int, max_norm: float) -> None:
        """A body wants this. Raises UserError if it cannot be, or if another body wanted something else."""
        wanted = float(max_norm)
        if not wanted > 0:
            raise UserError(f"clip({max_norm}): the greatest norm must be above 0")
        if self._always is not None:
            raise UserError(
                "clip() was called, and prepare() was given max_grad_norm=, which does the same: use one of them"
            )
        for other in self._own.values():
            if other != wanted:
                raise UserError(_disagreement(other, wanted))
        self._own[virtual_worker] = wanted

    def apply(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Clip the gradients of these parameters, if anybody wants that. Returns their 2-norm before."""
        limit = self._asked if self._always is None else self._always
        return None if limit is None else torch.nn.utils.clip_grad_norm_(parameters, limit)

    # -- in band: positive numbers are ordered as their bits are

    def numbers(self, part: Part) -> Sequence[int]:
        """The limit, and its negative. 0: bodies have asked for none. Raises UserError if only some have."""
        if not part.hosted:
            return NOTHING, NOTHING
        limits = [self._own.get(virtual_worker) for virtual_worker in part.hosted]
        if None in limits and any(limits):
            raise UserError(_disagreement(None, next(limit for limit in limits if limit is not None)))
        bits = 0 if limits[0] is None else struct.unpack("<q", struct.pack("<d", limits[0]))[0]
        return bits, -bits

    def wants(self, part: Part) -> bool:
        """No: the number is all."""
        return False

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Whether workers disagree."""
        bits, least = greatest[0], -greatest[1]
        self._asked = _number(bits) if bits > 0 else None
        return bits != NOTHING and bits != least

    def letter(self, part: Part) -> Any:
        """What this worker's bodies want."""
        return [self._own.get(part.hosted[0])] if part.hosted else None

    def read(self, part: Part, letters: Sequence[Any]) -> None:
        """Raises UserError if workers disagree."""
        wanted = [letter[0] for letter in letters if letter is not None]
        other = next((each for each in wanted if each != wanted[0]), wanted[0])
        if other != wanted[0]:
            raise UserError(_disagreement(*sorted((wanted[0], other), key=lambda limit: limit or 0.0)))


def divide(parameters: Sequence[torch.Tensor], virtual_workers: int, items: float) -> None:
    """From means over virtual workers, in the parameters' `grad`, to means over items; unchanged if there are none."""
    if not items:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, virtual_workers / items)


def _number(bits: int) -> float:
    found: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return found


def _disagreement(one: float | None, other: float | None) -> str:
    first = "was not called" if one is None else f"was called with {one}"
    return (
        f"clip() {first} for one virtual worker, and was called with {other} for another of the same step: "
        "derive it from run.steps_done, not from a counter of loop bodies"
    )
