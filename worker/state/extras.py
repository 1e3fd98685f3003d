"""Modules' state beyond tensors (`get_extra_state`), in a step: that of virtual worker 0 is the job's, as with buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from ...protocol.errors import UserError
from ..inband import Part
from ..plain import inline, pack, restored, unpack


class ExtraState:
    """The extra state of all modules that have one. Takes part in the step's payloads."""

    name = "extra state"
    slots = 0

    def __init__(self, modules: Sequence[tuple[str, torch.nn.Module]]) -> None:
        """modules: by the prefix of their names; the list may still grow."""
        self._modules = modules
        self._start: dict[str, bytes] = {}
        self._new: dict[str, bytes] | None = None  # extra state of virtual worker 0
        self.find()

    def __bool__(self) -> bool:
        return bool(self._found)

    def find(self) -> None:
        """Find the modules with extra state again, since modules may have changed."""
        self._found = {
            path: module
            for prefix, root in self._modules
            for path, module in root.named_modules(prefix=prefix)
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state
        }

    def values(self) -> dict[str, bytes]:
        """Return the packed states by module name. Raises UserError, naming the module, for a state that cannot travel."""
        found: dict[str, bytes] = {}
        for path, module in self._found.items():
            value = pack(module.get_extra_state(), f"get_extra_state() of {path or type(module).__name__}", inline)
            found[path] = msgspec.msgpack.encode(value)
        return found

    def set_values(self, values: dict[str, bytes]) -> None:
        """Set the states that differ from the present ones. Raises UserError for states of another model."""
        if sorted(values) != sorted(self._found):
            raise UserError(
                f"another model: there is extra state of {', '.join(values) or 'no module'} in the training state, and of "
                f"{', '.join(self._found) or 'no module'} here"
            )
        present = self.values()
        for path, value in values.items():
            if present[path] != value:
                state = unpack(msgspec.msgpack.decode(value), lambda content, present: restored(content))
                self._found[path].set_extra_state(state)

    # -- a step

    def begin(self) -> None:
        """Begin a step: record the states of its beginning."""
        self._start, self._new = self.values(), None

    def restore(self) -> None:
        """Restore the states of the step's beginning."""
        if self._start:
            self.set_values(self._start)

    def keep(self) -> None:
        """Record the states after virtual worker 0's body as the job's next ones."""
        self._new = self.values()

    def refuse_changes(self, why: str) -> None:
        """Raise UserError if virtual worker 0 has changed a state, with the reason `why` that forbids it."""
        if self._new is not None and self._new != self._start:
            path = next(path for path, value in self._new.items() if value != self._start.get(path))
            kind = type(self._found[path]).__name__
            raise UserError(
                f"the loop body has changed the extra state of {path or kind}, and {why}, for which it runs several times in a "
                "step: keep what it changes in a buffer"
            )

    def apply(self) -> None:
        """Set the job's next states."""
        if self._start:
            self.set_values(self._start if self._new is None else self._new)

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        """Return no integers: states travel in payloads."""
        return ()

    def wants(self, part: Part) -> bool:
        """Return whether virtual worker 0 ran here and has changed a state."""
        return self._new is not None and self._new != self._start

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Return False: states do not depend on the step's word."""
        return False

    def payload(self, part: Part) -> Any:
        """Return virtual worker 0's states, if it ran here."""
        return self._new

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Take over virtual worker 0's states."""
        for payload in payloads:
            if payload is not None:
                self._new = payload
        if part.joins and self._new is None:
            self._start = self.values()  # the received states
