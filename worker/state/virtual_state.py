"""Values of each virtual worker (`run.per_virtual_worker`): hidden states, baselines, replay buffers of one stream of samples.

A virtual worker is the unit of a training's semantics (EasyScale 3.2), so what follows from its samples alone is its own and
moves with it. In the body of virtual worker v the object has v's values; those at its `optimizer.step()` are v's in the next
step. They travel in the step's letters to all workers, each of which holds those of all N. So whoever hosts v next has v's
values, and so have joiners, survivors and checkpoints. That is N times the values of one, in each step in which they change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...protocol.errors import UserError
from ..inband import Part
from .script_state import Delta, Image, copy_of

PREFIX = "per_virtual_worker."


class VirtualWorkerState:
    """The object that a script has. Its attributes are those of `VirtualState` of the virtual worker whose body runs."""

    __slots__ = ("_state",)

    def __init__(self, state: VirtualState) -> None:
        object.__setattr__(self, "_state", state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._state.present(name)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._state.present(name)[name] = value


class VirtualState:
    """The values of all virtual workers, in a step. Takes part in its letters."""

    name = "virtual workers' state"
    slots = 0

    def __init__(self, virtual_workers: int) -> None:
        self._virtual_workers = virtual_workers
        self.object = VirtualWorkerState(self)
        self.device = torch.device("cpu")
        self.alone = True  # this worker has no other to tell
        self._kept: dict[str, list[Image]] = {}  # by name, of each virtual worker
        self._live: dict[str, Any] | None = None  # of the one whose body runs
        self._steps = 0  # of this process
        self._new: dict[int, dict[str, Delta]] = {}  # what has changed in this step, here or elsewhere

    def declare(self, values: Mapping[str, Any]) -> None:
        """The values that each virtual worker begins with. Raises UserError, naming it, for one that cannot travel."""
        for name, value in values.items():
            if name.startswith("_"):
                raise UserError(f"run.per_virtual_worker({name}=...): a name must not begin with an underscore")
            if name in self._kept:
                raise UserError(
                    f"run.per_virtual_worker({name}=...) was called twice: give each value a name of its own"
                )
            first = Image(PREFIX + name, value)
            self._kept[name] = [Image(PREFIX + name, copy_of(first)) for _ in range(self._virtual_workers)]

    def present(self, name: str) -> dict[str, Any]:
        """The values of the virtual worker whose body runs. Raises UserError where none does; AttributeError."""
        if name not in self._kept:
            raise AttributeError(
                f"{name} was not declared: before the loop write run.per_virtual_worker({name}=...), with the value that each "
                "virtual worker begins with"
            )
        if self._live is None:
            raise UserError(
                f"{name} of run.per_virtual_worker() belongs to the virtual worker whose loop body runs: use it in the loop "
                "body, before optimizer.step(). Tensors are detached there"
            )
        return self._live

    def get(self, name: str) -> list[Any]:
        """Those of all virtual workers."""
        return [image.copied() for image in self._kept[name]]

    def set(self, name: str, values: Sequence[Any]) -> None:
        """Let these be those of all."""
        self._kept[name] = [Image(PREFIX + name, value) for value in values]

    # -- a step

    def begin(self) -> None:
        """A step begins."""
        self._live, self._new, self._steps = None, {}, self._steps + 1

    def begin_body(self, virtual_worker: int) -> None:
        """Its body begins, with values of its own."""
        if self._kept:
            self._live = {name: images[virtual_worker].restored() for name, images in self._kept.items()}

    def keep(self, virtual_worker: int | None) -> None:
        """It has come to `optimizer.step()`. None: nothing of it counts. Raises UserError for what cannot travel."""
        live, self._live = self._live, None
        if live is None or virtual_worker is None:
            return
        self._new[virtual_worker] = {}
        for name, value in live.items():
            delta = Delta.between(PREFIX + name, self._kept[name][virtual_worker], value, contents=self._steps == 1)
            if delta is not None:
                self._new[virtual_worker][name] = delta

    def apply(self) -> None:
        """The update is about to be made."""
        new, self._new = self._new, {}
        for virtual_worker, deltas in new.items():
            for name, delta in deltas.items():
                old = self._kept[name][virtual_worker]
                value = delta.applied(old, old.restored())
                self._kept[name][virtual_worker] = Image(PREFIX + name, value, old)

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        """None."""
        return ()

    def wants(self, part: Part) -> bool:
        """Something has changed here, and there are others."""
        return not self.alone and any(self._new.values())

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """No."""
        return False

    def letter(self, part: Part) -> Any:
        """What has changed, of the virtual workers that ran here."""
        return {
            virtual_worker: {name: delta.plain() for name, delta in deltas.items()}
            for virtual_worker, deltas in self._new.items()
            if deltas
        }

    def read(self, part: Part, letters: Sequence[Any]) -> None:
        """Take the others' over."""
        for letter in letters:
            for virtual_worker, deltas in (letter or {}).items():
                if virtual_worker not in part.hosted:
                    found = {name: Delta.of_plain(values, self.device) for name, values in deltas.items()}
                    self._new[virtual_worker] = found
