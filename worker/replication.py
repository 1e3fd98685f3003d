"""State from those who have it to those who need it (Elan IV), through the communicator, while training goes on.

The planner is pure: each joiner gets the state from its nearest holder, all transfers in parallel, spread over equally near
holders. Sending does not block; what is sent must not change until `Pending.wait`. What is received stands in fresh tensors
until all of it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from ..protocol.model import GpuAddress
from .communicator import Communicator
from .state import empty_like_header

TAG_SIZE, TAG_HEADER, TAG_TRAILER_SIZE, TAG_TRAILER, TAG_TENSORS = range(1, 6)


@dataclass(frozen=True)
class Transfer:
    """Rank `source_rank` sends the state to rank `target_rank`."""

    source_rank: int
    target_rank: int


def plan_transfers(gpus: Sequence[GpuAddress], holders: Sequence[int], joiners: Sequence[int]) -> tuple[Transfer, ...]:
    """One transfer per joiner, from its nearest holder: on its own server if there is one. Among equally near ones the
    least loaded, then the lowest rank. (Elan IV; finer levels of nearness come with the topology.)"""
    load = dict.fromkeys(holders, 0)
    transfers = []
    for joiner in joiners:
        server = gpus[joiner].server
        source = min(holders, key=lambda rank: (gpus[rank].server != server, load[rank], rank))
        load[source] += 1
        transfers.append(Transfer(source, joiner))
    return tuple(transfers)


class Pending:
    """Sends under way. Keeps what is sent alive."""

    def __init__(self, communicator: Communicator, works: list[dist.Work], tensors: list[torch.Tensor]) -> None:
        self._communicator = communicator
        self._works = works
        self._tensors = tensors

    def wait(self) -> None:
        """Return when all has been sent. Raises CommunicatorBroken."""
        for work in self._works:
            self._communicator.wait(work)


class Incoming:
    """A state under way. `header` is here already."""

    def __init__(
        self,
        communicator: Communicator,
        header: dict[str, Any],
        works: list[dist.Work],
        tensors: list[torch.Tensor],
    ) -> None:
        self.header = header
        self._communicator = communicator
        self._works = works
        self._tensors = tensors

    def wait(self) -> list[torch.Tensor]:
        """The tensors, in the header's order, when all are here. Raises CommunicatorBroken."""
        for work in self._works:
            self._communicator.wait(work)
        return self._tensors


def start_sending(
    communicator: Communicator,
    targets: Sequence[int],
    header: dict[str, Any],
    tensors: Sequence[torch.Tensor],
    mutable: Sequence[torch.Tensor] = (),
) -> Pending:
    """Begin to send a state to `targets`. Tensors in `mutable` may change meanwhile: they are copied first."""
    changing = {tensor.data_ptr() for tensor in mutable if tensor.numel()}
    snapshot = [t.clone() if t.data_ptr() in changing else t for t in (tensor.contiguous() for tensor in tensors)]
    data = _bytes_of(header)
    size = torch.tensor([data.numel()])
    works = []
    for target in targets:
        works.append(communicator.send(size, target, TAG_SIZE))
        works.append(communicator.send(data, target, TAG_HEADER))
        for index, tensor in enumerate(snapshot):
            if tensor.numel():
                works.append(communicator.send(tensor.reshape(-1), target, TAG_TENSORS + index))
    return Pending(communicator, works, [size, data, *snapshot])


def start_receiving(communicator: Communicator, source: int, device: torch.device) -> Incoming:
    """Wait for the header, and begin to receive the tensors into fresh memory. Raises CommunicatorBroken."""
    header = _receive_document(communicator, source, TAG_SIZE, TAG_HEADER)
    tensors = empty_like_header(header, device)
    works = [
        communicator.receive(tensor.view(-1), source, TAG_TENSORS + index)
        for index, tensor in enumerate(tensors)
        if tensor.numel()
    ]
    return Incoming(communicator, header, works, tensors)


def send_trailer(communicator: Communicator, target: int, document: dict[str, Any]) -> None:
    """Send a small document and wait until it has gone. Raises CommunicatorBroken."""
    data = _bytes_of(document)
    size = torch.tensor([data.numel()])
    for work in (communicator.send(size, target, TAG_TRAILER_SIZE), communicator.send(data, target, TAG_TRAILER)):
        communicator.wait(work)


def receive_trailer(communicator: Communicator, source: int) -> dict[str, Any]:
    """The document that `source` sends with `send_trailer`. Raises CommunicatorBroken."""
    return _receive_document(communicator, source, TAG_TRAILER_SIZE, TAG_TRAILER)


def _bytes_of(document: dict[str, Any]) -> torch.Tensor:
    return torch.frombuffer(bytearray(msgspec.msgpack.encode(document)), dtype=torch.uint8)


def _receive_document(communicator: Communicator, source: int, size_tag: int, data_tag: int) -> dict[str, Any]:
    size = torch.zeros(1, dtype=torch.int64)
    communicator.wait(communicator.receive(size, source, size_tag))
    data = torch.empty(int(size[0]), dtype=torch.uint8)
    communicator.wait(communicator.receive(data, source, data_tag))
    document: dict[str, Any] = msgspec.msgpack.decode(data.numpy().tobytes())
    return document
