"""Values of each virtual worker (`run.per_virtual_worker`): hidden states, baselines, replay buffers of one stream of
samples.

A virtual worker is the unit of training semantics (EasyScale 3.2), so values that follow from its samples alone belong
to it and move with it. In the body of virtual worker v the object has v's values; those at its `optimizer.step()` are
v's in the next step. They travel in the step's payloads to all workers, each of which holds the values of all N virtual
workers. So the next host of v has v's values, and so have joining workers, survivors and checkpoints. The cost is N
times the values of one virtual worker, in each step in which they change.
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
    """The object that a script uses. Its attributes are those of the virtual worker of which the body runs."""

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
    """The values of all virtual workers, in a step. Takes part in its payloads."""

    name = "virtual workers' state"
    slots = 0

    def __init__(self, virtual_workers: int) -> None:
        self._virtual_workers = virtual_workers
        self.object = VirtualWorkerState(self)
        self.device = torch.device("cpu")
        self.alone = True  # there is no other worker
        self._kept: dict[str, list[Image]] = {}  # by name: images of all virtual workers
        self._live: dict[str, Any] | None = None  # values of the virtual worker of which the body runs
        self._steps = 0  # number of steps of this process
        self._new: dict[int, dict[str, Delta]] = {}  # changes in this step, by virtual worker, here or on other workers

    @property
    def count(self) -> int:
        """Number of the job's virtual workers."""
        return self._virtual_workers

    @property
    def declared(self) -> bool:
        """Whether there are any values."""
        return bool(self._kept)

    def declare(self, values: Mapping[str, Any]) -> None:
        """Add values with which each virtual worker begins. Raises UserError, naming the value, if one cannot travel."""
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
        """Return the values of the virtual worker of which the body runs.

        Raises UserError outside a body, AttributeError for an undeclared name.
        """
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
        """Return the values of all virtual workers."""
        return [image.copied() for image in self._kept[name]]

    def set(self, name: str, values: Sequence[Any]) -> None:
        """Set the values of all virtual workers."""
        self._kept[name] = [Image(PREFIX + name, value) for value in values]

    # -- a step

    def begin(self) -> None:
        """Begin a step."""
        self._live, self._new, self._steps = None, {}, self._steps + 1

    def begin_body(self, virtual_worker: int) -> None:
        """Begin the body of a virtual worker, with its values."""
        if self._kept:
            self._live = {name: images[virtual_worker].restored() for name, images in self._kept.items()}

    def keep(self, virtual_worker: int | None) -> None:
        """Record the changes of a body that has come to `optimizer.step()`. None: the body has no effect.

        Raises UserError for values that cannot travel.
        """
        live, self._live = self._live, None
        if live is None or virtual_worker is None:
            return
        self._new[virtual_worker] = {}
        for name, value in live.items():
            delta = Delta.between(PREFIX + name, self._kept[name][virtual_worker], value, contents=self._steps == 1)
            if delta is not None:
                self._new[virtual_worker][name] = delta

    def apply(self) -> None:
        """Set the changed values; the update follows."""
        new, self._new = self._new, {}
        for virtual_worker, deltas in new.items():
            for name, delta in deltas.items():
                old = self._kept[name][virtual_worker]
                value = delta.applied(old, old.restored())
                self._kept[name][virtual_worker] = Image(PREFIX + name, value, old)

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        """Return no integers: values travel in payloads."""
        return ()

    def wants(self, part: Part) -> bool:
        """Return whether a value has changed here and there are other workers."""
        return not self.alone and any(self._new.values())

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Return False: values do not depend on the step's word."""
        return False

    def payload(self, part: Part) -> Any:
        """Return the changes of the virtual workers that ran here."""
        return {
            virtual_worker: {name: delta.plain() for name, delta in deltas.items()}
            for virtual_worker, deltas in self._new.items()
            if deltas
        }

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Take over the changes of virtual workers on other workers."""
        for payload in payloads:
            for virtual_worker, deltas in (payload or {}).items():
                if virtual_worker not in part.hosted:
                    found = {name: Delta.of_plain(values, self.device) for name, values in deltas.items()}
                    self._new[virtual_worker] = found
