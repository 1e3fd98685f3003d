"""Several updates from one batch, such as the two halves of a GAN: each is a step of its own, with optimizers of its own.

The updates take turns, one in each step. In a step every worker trains only the parameters of that update's optimizers. Other
parameters are neither reduced nor changed, whatever gradients a backward pass leaves in their `grad`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ...protocol.errors import UserError


class Updates:
    """The updates that are made from each batch, in their order."""

    def __init__(self, names: Sequence[str], optimizers: Sequence[tuple[int, ...]]) -> None:
        """optimizers: for each update, the positions of its optimizers among all."""
        self.names = tuple(names)
        self._optimizers = tuple(optimizers)

    @classmethod
    def of(cls, updates: Any, optimizers: Sequence[torch.optim.Optimizer]) -> Updates:
        """Return the updates of a script's argument: a mapping from names to the stepped optimizer or optimizers.

        None: one update, with all optimizers. Raises UserError for another type, for an optimizer that `prepare` was not given,
        and if an optimizer is never stepped."""
        if updates is None:
            return cls(("",), (tuple(range(len(optimizers))),))
        if not isinstance(updates, Mapping) or not updates or not all(isinstance(name, str) for name in updates):
            raise UserError(
                "updates= takes a mapping from a name to the optimizer that is stepped: "
                "updates={'discriminator': first, 'generator': second}"
            )
        known = {id(optimizer): position for position, optimizer in enumerate(optimizers)}
        found: list[tuple[int, ...]] = []
        for name, value in updates.items():
            several = [value] if isinstance(value, torch.optim.Optimizer) else list(value)
            if not several or any(id(each) not in known for each in several):
                raise UserError(f"updates= has for {name!r} an optimizer that prepare() was not given")
            found.append(tuple(known[id(each)] for each in several))
        missing = set(range(len(optimizers))) - {position for each in found for position in each}
        if missing:
            kind = type(optimizers[min(missing)]).__name__
            raise UserError(f"updates= never steps optimizer {min(missing)}, {kind}: name it for one of the updates")
        return cls(tuple(updates), found)

    def __len__(self) -> int:
        return len(self.names)

    def number(self, step: int) -> int:
        """Return the number of the update that a step makes."""
        return step % len(self.names)

    def optimizers(self, step: int) -> tuple[int, ...]:
        """Return the positions of the optimizers that the script steps in a step."""
        return self._optimizers[self.number(step)]

    def owned(
        self, step: int, parameters: list[torch.nn.Parameter], optimizers: Sequence[torch.optim.Optimizer]
    ) -> list[torch.nn.Parameter]:
        """Return those of `parameters` that a step trains."""
        if len(self.names) == 1:
            return parameters
        groups = [group for position in self.optimizers(step) for group in optimizers[position].param_groups]
        known = {id(parameter) for group in groups for parameter in group["params"]}
        return [parameter for parameter in parameters if id(parameter) in known]

    def check_all_stepped(self, step: int, stepped: Collection[int]) -> None:
        """Raise UserError if the script has stepped some of the step's optimizers for a batch, but not all."""
        wanted = self.optimizers(step)
        if stepped and (missing := [position for position in wanted if position not in stepped]):
            raise UserError(
                f"the loop asked for the next batch when {len(stepped)} of its {len(wanted)} optimizers had been stepped, but "
                f"not number {missing[0]} of prepare(): step all of them for each batch. Optimizers that take turns are updates: "
                "prepare(…, updates={'first': first, 'second': second}), and in the loop `if batches.update == 'first':` with "
                "one, `else:` with the other; each batch comes once for each update"
            )

    def check_stepped(self, step: int, optimizer: int) -> None:
        """Raise UserError if the script steps an optimizer in an update to which it does not belong."""
        if optimizer not in self.optimizers(step):
            number = self.number(step)
            theirs = next(name for name, those in zip(self.names, self._optimizers, strict=True) if optimizer in those)
            raise UserError(
                f"an optimizer of the update {theirs!r} was stepped in the update {self.names[number]!r}: write "
                f"`if batches.update == {theirs!r}:` before it"
            )
