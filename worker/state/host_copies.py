"""Copies of tensors in the host's memory, made beside the training (docs/design/gpus.md).

A copy from a device to ordinary memory is made piece by piece by the driver, which holds up whoever else launches a kernel: on an
H100 a training step took seven times as long meanwhile. So what lies on a device goes through two page-locked buffers: while the
device fills one of them, the processor empties the other, and nobody waits but the thread that copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

PIECE_BYTES = 32 << 20  # of one buffer: large enough to keep the bus busy, small enough to be page-locked for good


def _page_locked(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class HostCopies:
    """Makes copies, for one thread at a time. Its buffers are made when the first tensor of a device comes, and kept."""

    def __init__(self, make: Callable[[int], torch.Tensor] = _page_locked, piece_bytes: int = PIECE_BYTES) -> None:
        """make: a buffer of so many bytes."""
        self._make = make
        self._size = piece_bytes
        self._buffers: list[torch.Tensor] = []

    def of(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """A copy of each tensor, of its type, shape and strides; it is read in the present stream.

        Raises RuntimeError where there is no memory for it.
        """
        return [self.of_one(tensor) if tensor.is_cuda else tensor.to("cpu", copy=True) for tensor in tensors]

    def of_one(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same through the buffers, wherever it lies."""
        tensor = tensor.resolve_conj().resolve_neg()
        copy = torch.empty_like(tensor, device="cpu")
        source = tensor if tensor.stride() == copy.stride() else tensor.clone()  # strides of a view with gaps
        if source.stride() != copy.stride() or not tensor.numel():
            return tensor.to("cpu", copy=True)
        self._carry(_bytes_of(source), _bytes_of(copy))
        return copy

    def _carry(self, source: torch.Tensor, copy: torch.Tensor) -> None:
        """Bytes, as they lie in memory. One buffer is filled while the other one is emptied."""
        while len(self._buffers) < 2:
            self._buffers.append(self._make(self._size))
        filled: list[tuple[torch.Tensor, torch.Tensor, torch.cuda.Event | None]] = []  # buffer, where it goes, when
        for number, begin in enumerate(range(0, len(source), self._size)):
            piece = source[begin : begin + self._size]
            buffer = self._buffers[number % 2][: len(piece)]
            buffer.copy_(piece, non_blocking=True)
            filled.append((buffer, copy[begin : begin + self._size], _event(piece.device)))
            if len(filled) == 2:
                _empty(*filled.pop(0))
        for each in filled:
            _empty(*each)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor without gaps, whatever the order of its dimensions."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _event(device: torch.device) -> torch.cuda.Event | None:
    """Behind what the present stream has been given."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _empty(buffer: torch.Tensor, target: torch.Tensor, filled: torch.cuda.Event | None) -> None:
    if filled is not None:
        filled.synchronize()
    target.copy_(buffer)
