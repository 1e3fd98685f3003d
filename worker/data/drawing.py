"""The order that a script's own sampler gives to an epoch.

A sampler is drawn from once per epoch, under a seed of (job seed, epoch), on every worker alike. So the order does not
depend on the process that draws, nor on how many epochs this process has seen before. The sampler's sources of
randomness are seeded: the global generators, and generators that it keeps as attributes. A sampler with
`set_epoch(epoch)` gets the epoch, as with DistributedDataParallel.

Other state of a sampler cannot be seeded. So the workers compare the drawn orders in band: `OrderWatch`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from ...protocol.errors import UserError
from ..inband import Part, never
from ..virtual import derive_seed, seed_everything
from .generators import generators_kept
from .likeness import Unlike
from .sampling import Schedule, fingerprint

_GENERATORS = (torch.Generator, random.Random, numpy.random.RandomState, numpy.random.Generator)


class DrawnOrder:
    """The order of a sampler, or the batches of a batch sampler."""

    def __init__(self, sampler: Any, seed: int, name: str) -> None:
        """name: of the argument of `prepare`. Raises UserError for an object that has no length, or is no sampler."""
        if not hasattr(sampler, "__iter__") or isinstance(sampler, str | dict):
            raise UserError(f"{name}= takes an object that is iterated once for each epoch, not {_a(sampler)}")
        if iter(sampler) is sampler:
            raise UserError(
                f"{name}= is an iterator, which can be read once: give an object whose `__iter__` begins a new epoch each time"
            )
        try:
            self.size = len(sampler)
        except TypeError:
            raise UserError(
                f"{name}= has no length: give {type(sampler).__name__} a method `__len__`, the same in every epoch, so that "
                "the number of steps is known"
            ) from None
        self._sampler = sampler
        self._seed = seed
        self._name = name
        self._drawn: dict[int, tuple[Sequence[Any], int]] = {}

    def of(self, epoch: int) -> Sequence[Any]:
        return self._of(epoch)[0]

    def fingerprint(self, epoch: int) -> int:
        return self._of(epoch)[1]

    def forget(self) -> None:
        """Draw again at the next request: another state has come, on which the sampler's order may depend."""
        self._drawn = {}

    def _of(self, epoch: int) -> tuple[Sequence[Any], int]:
        if epoch not in self._drawn:
            drawn = self._draw(epoch)
            # While one epoch is trained the next may be read ahead.
            self._drawn = {kept: self._drawn[kept] for kept in list(self._drawn)[-1:]}
            self._drawn[epoch] = drawn, fingerprint(drawn)
        return self._drawn[epoch]

    def _draw(self, epoch: int) -> list[Any]:
        with generators_kept():
            value = derive_seed(self._seed, "sampler", epoch)
            seed_everything(value)
            _begin_epoch(self._sampler, epoch, value)
            drawn = list(self._sampler)
        if len(drawn) != self.size:
            raise UserError(
                f"{self._name}= has given {len(drawn)} in epoch {epoch}, and its length is {self.size}: an epoch has as many "
                "steps as every other"
            )
        return drawn


def samplers_of(sampler: Any) -> list[Any]:
    """Return a sampler and the samplers that it keeps as attributes, at any depth; of None: none."""
    found = [] if sampler is None else [sampler]
    for each in found:
        kept = [value for value in _attributes(each) if isinstance(value, torch.utils.data.Sampler)]
        found += [value for value in kept if all(value is not other for other in found)]
    return found


def _attributes(sampler: Any) -> list[Any]:
    return list(getattr(sampler, "__dict__", {}).values())


def seeded_generators(sampler: Any) -> list[Any]:
    """Return the generators that a sampler and its inner samplers keep.

    They are seeded before each epoch's order is drawn.
    """
    return [value for each in samplers_of(sampler) for value in _attributes(each) if isinstance(value, _GENERATORS)]


def _begin_epoch(sampler: Any, epoch: int, seed: int) -> None:
    """Pass the epoch to a sampler and its inner samplers; seed the generators that they keep."""
    for each in samplers_of(sampler):
        if callable(set_epoch := getattr(each, "set_epoch", None)):
            set_epoch(epoch)
    for value in seeded_generators(sampler):
        if isinstance(value, torch.Generator):
            value.manual_seed(seed)
        elif isinstance(value, numpy.random.Generator):
            value.bit_generator.state = type(value.bit_generator)(seed).state
        else:
            value.seed(seed & 0xFFFFFFFF if isinstance(value, numpy.random.RandomState) else seed)


class OrderWatch:
    """Compares the orders of the workers (`inband.Participant`): with different orders, samples would be trained twice
    or never.
    """

    name = "order"
    slots = 2
    compares = True

    def __init__(self, schedule: Schedule, epoch: Callable[[int], int] | None = None) -> None:
        """epoch: returns the epoch of the step in progress, if that is not the schedule's."""
        self._schedule = schedule
        self._epoch = epoch or schedule.epoch

    def numbers(self, part: Part) -> Sequence[int]:
        own = self._own(part)
        return own, -own

    wants = never

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        return greatest[0] != -greatest[1]

    def payload(self, part: Part) -> Any:
        return [self._own(part), self._schedule.order.size, part.joins]

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Compare the payloads of all workers. Raises Unlike on a joining worker that differs, which must not join.

        The other workers continue without it. Raises UserError if workers that have the state differ among each other.
        """
        told = [payload for payload in payloads if payload is not None]
        told = [(own, size) for own, size, joins in told if not joins]
        if part.joins:
            if isinstance(self._schedule.order, DrawnOrder):
                self._schedule.order.forget()
            told.append((self._own(part), self._schedule.order.size))
        if len({own for own, _ in told}) < 2:
            return
        epoch = self._epoch(part.step)
        sizes = sorted({size for _, size in told})
        if len(sizes) > 1:
            text = f"their datasets have {' and '.join(map(str, sizes))} samples: give all servers the same files"
        else:
            text = (
                "their samplers have given different orders: derive it from the epoch alone, which "
                "`set_epoch(epoch)` is told, and from torch's, NumPy's or Python's generators, which are seeded for it. One that "
                "looks at losses needs those of all: state = run.state(losses=…, weights=…), losses filled in each loop body "
                "from run.gather(losses.detach(), differentiable=False), and weights taken from them before the loop over batches"
            )
        kind = Unlike if part.joins else UserError
        raise kind(f"the workers do not read the same data in epoch {epoch} (step {part.step}): {text}")

    def _own(self, part: Part) -> int:
        return self._schedule.order.fingerprint(self._epoch(part.step))


def _a(value: Any) -> str:
    return f"{value!r}" if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
