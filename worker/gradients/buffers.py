"""A model's buffers in a step: those of virtual worker 0 are the job's, as in DistributedDataParallel's `broadcast_buffers`.

Each virtual worker begins with the buffers that the step began with; what it makes of them is thrown away, except for the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ..communication.communicator import Communicator


class ModelBuffers:
    """The buffers of one model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.live = list(model.buffers())
        self._start: list[torch.Tensor] = []
        self._new: list[torch.Tensor] = []
        self._changed = False  # since the start

    def begin(self) -> None:
        """A step begins: remember what it begins with."""
        self._start = [buffer.clone() for buffer in self.live]
        self._changed = False

    def begin_micro_batch(self) -> None:
        """A virtual worker begins."""
        if self._changed:
            self.restore()
        self._changed = True

    def restore(self) -> None:
        """What the step began with holds again."""
        _copy(self.live, self._start)
        self._changed = False

    @contextmanager
    def as_begun(self) -> Iterator[None]:
        """Meanwhile what the step began with holds."""
        present = [buffer.clone() for buffer in self.live]
        # `data`: a backward pass that is still to come finds them unchanged, as they are by then.
        views = [buffer.data for buffer in self.live]
        _copy(views, self._start)
        try:
            yield
        finally:
            _copy(views, present)

    def keep(self) -> None:
        """Virtual worker 0 has just run: this is what the job's buffers become."""
        self._new = [buffer.clone() for buffer in self.live]

    def share(self, communicator: Communicator, root: int) -> None:
        """Rank `root`, which hosts virtual worker 0, gives its buffers to all. Raises CommunicatorBroken."""
        if not self.live:
            return
        if communicator.rank != root:
            self._new = [torch.empty_like(buffer) for buffer in self.live]
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
        """The step is applied: the shared buffers are the model's."""
        _copy(self.live, self._new)


def _by_device(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    found: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        found.setdefault(tensor.device, []).append(index)
    return list(found.values())


def _copy(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        if targets:
            torch._foreach_copy_(targets, values)
