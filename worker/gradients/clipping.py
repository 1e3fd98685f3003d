"""Processing of the global gradient before the update: division by a count of items, clipping to a norm.

A loop body may set the clipping limit (`Run.clip`, or `clip_grad_norm_` by way of `clip_calls`). The body runs once for
each virtual worker, and the global gradient is complete after the last of them; so the limit is kept until then. It
travels in the step's word, as the bits of a floating-point number: a worker that has run no body in this step clips like
the others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...protocol.errors import UserError
from ..inband import NOTHING, Part, never


class Clipping:
    """The clipping limit of a step, and the norm before clipping. Takes part in the step's exchange."""

    name = "clipping"
    slots = 2

    def __init__(self, max_norm: float | None = None) -> None:
        """max_norm: limit of every step, from `prepare`; None: bodies may set one."""
        self._always = max_norm
        self._own: dict[int, float] = {}  # limits set by this worker's bodies in this step, by virtual worker
        self._asked: float | None = None  # limit of all workers' bodies
        self._fails = False  # whether the script wants an error if the norm is not finite

    def begin(self) -> None:
        """Begin a step, or begin it again."""
        self._own = {}
        self._asked = None
        self._fails = False

    def ask(self, virtual_worker: int, max_norm: float, fails: bool = False) -> None:
        """Set a body's limit. fails: raise torch's error in the update if the norm is not finite.

        Raises UserError if the limit is not positive, or if this or another body set a different one."""
        wanted = float(max_norm)
        if not wanted > 0:
            raise UserError(f"the gradient is to be clipped to {max_norm}: the greatest norm must be above 0")
        if self._always is not None:
            raise UserError(
                "a loop body clips the gradient, and prepare() was given max_grad_norm=, which does the same: use one of them"
            )
        if self._own.get(virtual_worker, wanted) != wanted:
            raise UserError(
                f"a loop body clips the gradient to {self._own[virtual_worker]} and to {wanted}: the step's gradient is clipped "
                "once. In a function it may be clipped several times: prepare(…, before_update=f)"
            )
        for other in self._own.values():
            if other != wanted:
                raise UserError(_disagreement(other, wanted))
        self._own[virtual_worker] = wanted
        self._fails = self._fails or fails

    def apply(
        self, parameters: Sequence[torch.Tensor], norm: Callable[[], torch.Tensor] | None = None
    ) -> torch.Tensor | None:
        """Clip the gradients of these parameters if there is a limit.

        norm: computes the norm of all gradients, where `parameters` are this worker's parts; None: it has all.

        Returns their 2-norm before; None without a limit. Raises RuntimeError if the norm is not finite and the script wants
        an error.
        """
        limit = self._asked if self._always is None else self._always
        if limit is None:
            return None
        if norm is None:
            return torch.nn.utils.clip_grad_norm_(parameters, limit, error_if_nonfinite=self._fails)
        found = norm()
        if self._fails and not bool(found.isfinite()):
            raise RuntimeError(f"The total norm of order 2.0 for gradients from `parameters` is non-finite ({found})")
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, found)
        return found

    # -- in band: positive numbers are ordered as their bits are

    def numbers(self, part: Part) -> Sequence[int]:
        """Return the limit as an integer, and its negative; 0 without a limit.

        Raises UserError if only some bodies have set one.
        """
        if not part.hosted:
            return NOTHING, NOTHING
        if not self._own:
            return 0, 0
        limits = [self._own.get(virtual_worker) for virtual_worker in part.hosted]
        if None in limits and any(limits):
            raise UserError(_disagreement(None, next(limit for limit in limits if limit is not None)))
        bits = 0 if limits[0] is None else struct.unpack("<q", struct.pack("<d", limits[0]))[0]
        return bits, -bits

    wants = never

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Return whether the workers' limits differ."""
        bits, least = greatest[0], -greatest[1]
        self._asked = _number(bits) if bits > 0 else None
        return bits != NOTHING and bits != least

    def payload(self, part: Part) -> Any:
        """Return the limit of this worker's bodies."""
        return [self._own.get(part.hosted[0])] if part.hosted else None

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Compare the payloads. Raises UserError if the workers' limits differ."""
        wanted = [payload[0] for payload in payloads if payload is not None]
        other = next((each for each in wanted if each != wanted[0]), wanted[0])
        if other != wanted[0]:
            raise UserError(_disagreement(*sorted((wanted[0], other), key=lambda limit: limit or 0.0)))


def divide(parameters: Sequence[torch.Tensor], virtual_workers: int, items: float) -> None:
    """Convert means over virtual workers, in the parameters' `grad`, to means over items; unchanged if `items` is 0."""
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
        f"clip_grad_norm_() or run.clip() {first} for one virtual worker, and was called with {other} for another of the same "
        "step: derive it from run.steps_done, or from run.grad_norm of the step before, not from a counter of loop bodies or the "
        "norm of a micro-batch"
    )
