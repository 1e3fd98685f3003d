"""Modules' state beyond tensors (`get_extra_state`), in a step: that of virtual worker 0 is the job's, as with buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from ...protocol.errors import UserError
from ..inband import Part
from .plain import inline, pack, restored, unpack


class ExtraState:
    """That of all modules that have one. Takes part in the step's letters."""

    name = "extra state"
    slots = 0

    def __init__(self, modules: Sequence[tuple[str, torch.nn.Module]]) -> None:
        """modules: by the prefix of their names; the list may still grow."""
        self._modules = modules
        self._start: dict[str, bytes] = {}
        self._new: dict[str, bytes] | None = None  # virtual worker 0's
        self.find()

    def find(self) -> None:
        """There may be other modules than before."""
        self._found = {
            path: module
            for prefix, root in self._modules
            for path, module in root.named_modules(prefix=prefix)
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state
        }

    def values(self) -> dict[str, bytes]:
        """Packed, by the modules' names. Raises UserError, naming the module, where that cannot be."""
        found: dict[str, bytes] = {}
        for path, module in self._found.items():
            value = pack(module.get_extra_state(), f"get_extra_state() of {path or type(module).__name__}", inline)
            found[path] = msgspec.msgpack.encode(value)
        return found

    def set_values(self, values: dict[str, bytes]) -> None:
        """Take them over, where they differ from those of now."""
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
        """A step begins: remember what it begins with."""
        self._start, self._new = self.values(), None

    def restore(self) -> None:
        """What the step began with holds again."""
        if self._start:
            self.set_values(self._start)

    def keep(self) -> None:
        """Virtual worker 0 has just run: this is what the job's become."""
        self._new = self.values()

    def refuse_changes(self, why: str) -> None:
        """Raises UserError if virtual worker 0 has changed it."""
        if self._new is not None and self._new != self._start:
            path = next(path for path, value in self._new.items() if value != self._start.get(path))
            kind = type(self._found[path]).__name__
            raise UserError(
                f"the loop body has changed the extra state of {path or kind}, and {why}, for which it runs several times in a "
                "step: keep what it changes in a buffer"
            )

    def apply(self) -> None:
        """The step is applied."""
        if self._start:
            self.set_values(self._start if self._new is None else self._new)

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        """None."""
        return ()

    def wants(self, part: Part) -> bool:
        """Virtual worker 0 ran here, and has changed something."""
        return self._new is not None and self._new != self._start

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """No."""
        return False

    def letter(self, part: Part) -> Any:
        """What virtual worker 0 has made of it."""
        return self._new

    def read(self, part: Part, letters: Sequence[Any]) -> None:
        """Take virtual worker 0's over."""
        for letter in letters:
            if letter is not None:
                self._new = letter
        if part.joins and self._new is None:
            self._start = self.values()  # those that have come
