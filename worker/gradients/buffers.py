"""Modules' buffers in a step: those of virtual worker 0 become the job's, as in DistributedDataParallel's `broadcast_buffers`.

Each virtual worker's body begins with the buffers with which the step began. Its changes are discarded, except for those of
virtual worker 0. A buffer is a name in a module, not a tensor: a forward pass may change the tensor in place, or assign another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ...protocol.errors import UserError
from ..communication.communicator import Communicator


class Slot(NamedTuple):
    """Place of a buffer: a name in a module."""

    path: str
    module: torch.nn.Module
    name: str

    @property
    def tensor(self) -> torch.Tensor | None:
        """The present tensor of the buffer; None: the buffer was removed, or set to None."""
        return self.module._buffers.get(self.name)


def slots(modules: Sequence[tuple[str, torch.nn.Module]]) -> list[Slot]:
    """Return the buffers of all these modules, persistent or not, each tensor once. `modules`: with a prefix for their names."""
    found: dict[int, Slot] = {}
    for slot in _all_slots(modules):
        found.setdefault(id(slot.tensor), slot)
    return list(found.values())


def _all_slots(modules: Sequence[tuple[str, torch.nn.Module]]) -> Iterator[Slot]:
    for prefix, root in modules:
        for path, module in root.named_modules(prefix=prefix):
            for name, tensor in module._buffers.items():
                if tensor is not None:
                    yield Slot(f"{path}.{name}" if path else name, module, name)


class ModelBuffers:
    """The buffers of a script's modules."""

    def __init__(self, modules: Sequence[tuple[str, torch.nn.Module]]) -> None:
        """modules: the list may still grow."""
        self._modules = modules
        self._start: list[torch.Tensor] = []  # the tensors themselves at the step's beginning
        self._values: list[torch.Tensor] = []  # copies of their values then
        self._bases: list[torch.Tensor] = []  # values with which bodies begin
        self._new: list[torch.Tensor] = []  # values that virtual worker 0 leaves
        self._changed = False  # whether a body may have changed the buffers since
        self._bodies = 0  # number of bodies that this process has run
        self.find()

    def find(self) -> None:
        """Find the buffers anew: the script may have added and removed some between epochs."""
        self._slots = slots(self._modules)
        if not self._slots:
            self._start = self._values = self._bases = self._new = []

    def __bool__(self) -> bool:
        return bool(self._slots)

    @property
    def live(self) -> list[torch.Tensor]:
        """The present tensors of the buffers."""
        return [tensor for slot in self._slots if (tensor := slot.tensor) is not None]

    def begin(self) -> None:
        """Begin a step: remember the buffers' values."""
        if not self._slots:
            return
        if any(slot.tensor is None for slot in self._slots):
            self.find()
        self._start = self.live
        self._values = self._bases = [buffer.detach().clone() for buffer in self._start]
        self._changed = False

    def begin_again(self) -> None:
        """Let the step's bodies run once more, beginning with the values that virtual worker 0 has shared."""
        self._bases = self._new
        self._put(self._bases)
        self._changed = False

    def begin_micro_batch(self) -> None:
        """Begin the body of a virtual worker."""
        if self._changed:
            self._put(self._bases)
        self._changed = True

    def restore(self) -> None:
        """Restore the values with which the step began."""
        self._put(self._values)
        self._changed = False

    @contextmanager
    def as_begun(self) -> Iterator[None]:
        """Give the buffers, within the context, the values with which the step began."""
        present = [slot.tensor for slot in self._slots]
        for slot, value in zip(self._slots, self._values, strict=True):
            slot.module._buffers[slot.name] = value
        try:
            yield
        finally:
            for slot, tensor in zip(self._slots, present, strict=True):
                slot.module._buffers[slot.name] = tensor

    def check(self) -> None:
        """Check the buffers after a body. Raises UserError, naming the buffer, if one was added or removed, or has changed its
        shape, type or device."""
        self._bodies += 1
        if self._bodies == 1:
            known = {(id(slot.module), slot.name) for slot in self._slots}
            for slot in slots(self._modules):
                if (id(slot.module), slot.name) not in known:
                    raise UserError(
                        f"the buffer {slot.path} was added in the loop body: give it a tensor in the module's __init__, or "
                        "before the loop"
                    )
        for slot, start in zip(self._slots, self._start, strict=True):
            tensor = slot.tensor
            if tensor is start:
                continue
            if tensor is None:
                raise UserError(
                    f"the buffer {slot.path} was removed in the loop body: keep a tensor of one shape there"
                )
            if (tensor.shape, tensor.dtype, tensor.device) != (start.shape, start.dtype, start.device):
                raise UserError(
                    f"the buffer {slot.path} was {_words(start)} before the loop body and is {_words(tensor)} behind it: keep "
                    "its shape and type (take one that is large enough, and beside it a buffer that counts), or change it in "
                    "after_update= of prepare() or between epochs"
                )

    def keep(self) -> None:
        """Keep the present values, which virtual worker 0's body has left: they become the job's."""
        if self._slots:
            self._new = [buffer.detach().clone() for buffer in self.live]

    def share(self, communicator: Communicator, root: int) -> None:
        """Broadcast the buffers of rank `root`, which hosts virtual worker 0. Raises CommunicatorBroken."""
        if not self._start:
            return
        if communicator.rank != root:
            self._new = [torch.empty_like(buffer) for buffer in self._start]
        if communicator.size == 1:
            return
        for indices in _by_device(self._new):
            self._broadcast(communicator, root, [self._new[index] for index in indices])

    def _broadcast(self, communicator: Communicator, root: int, tensors: Sequence[torch.Tensor]) -> None:
        packed = torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors])
        communicator.wait(communicator.broadcast(packed, root))
        offset = 0
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            # clone: the slice of `packed` need not be aligned for the wider type
            tensor.copy_(packed[offset : offset + size].clone().view(tensor.dtype).view(tensor.shape))
            offset += size

    def apply(self) -> None:
        """Set the model's buffers to the shared ones, when the step is applied."""
        self._put(self._new)

    def _put(self, values: list[torch.Tensor]) -> None:
        """Restore the tensors of the step's beginning, and copy `values` to them."""
        for slot, start in zip(self._slots, self._start, strict=True):
            slot.module._buffers[slot.name] = start
        if values:
            with torch.no_grad():
                torch._foreach_copy_(self._start, values)


def _by_device(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    found: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        found.setdefault(tensor.device, []).append(index)
    return list(found.values())


def _words(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
