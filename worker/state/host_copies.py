"""Copies of tensors in the host's memory, made beside the training (docs/design/gpus.md).

The driver makes a copy from a device to ordinary memory piece by piece, which delays every thread that launches a
kernel: on an H100 a training step took seven times as long meanwhile. So tensors on a device go through two page-locked
buffers. While the device fills one of them, the processor empties the other, and only the copying thread waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

PIECE_BYTES = 32 << 20  # size of one buffer: large enough to keep the bus busy, small enough to stay page-locked


def _page_locked(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


class HostCopies:
    """Makes copies, for one thread at a time. Its buffers are allocated for the first tensor on a device, and kept."""

    def __init__(self, make: Callable[[int], torch.Tensor] = _page_locked, piece_bytes: int = PIECE_BYTES) -> None:
        """make: allocates a buffer of the given number of bytes."""
        self._make = make
        self._size = piece_bytes
        self._buffers: list[torch.Tensor] = []

    def of(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return a host copy of each tensor, with its type, shape and strides. Tensors are read in the present stream.

        Raises RuntimeError if memory is exhausted.
        """
        return [self.of_one(tensor) if tensor.is_cuda else tensor.to("cpu", copy=True) for tensor in tensors]

    def of_one(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a host copy of a tensor through the buffers, from any device."""
        tensor = tensor.resolve_conj().resolve_neg()
        copy = torch.empty_like(tensor, device="cpu")
        source = tensor if tensor.stride() == copy.stride() else tensor.clone()  # the tensor is a view with gaps
        if source.stride() != copy.stride() or not tensor.numel():
            return tensor.to("cpu", copy=True)
        self._carry(_bytes_of(source), _bytes_of(copy))
        return copy

    def _carry(self, source: torch.Tensor, copy: torch.Tensor) -> None:
        """Copy bytes in memory order. One buffer is filled while the other one is emptied."""
        while len(self._buffers) < 2:
            self._buffers.append(self._make(self._size))
        # buffer, target, and the event after which the buffer is full
        filled: list[tuple[torch.Tensor, torch.Tensor, torch.cuda.Event | None]] = []
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
    """Return the memory of a tensor without gaps as bytes, in any order of its dimensions."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _event(device: torch.device) -> torch.cuda.Event | None:
    """Record an event after the work queued on the present stream; None on a CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _empty(buffer: torch.Tensor, target: torch.Tensor, filled: torch.cuda.Event | None) -> None:
    if filled is not None:
        filled.synchronize()
    target.copy_(buffer)
