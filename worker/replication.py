"""State from those who have it to those who need it (Elan IV; design: worker-runtime 5).

The planner is pure: each joiner gets a nearest holder, and the load is spread over equally near ones (finer levels of
nearness come with the topology). A transfer sends the header of the state, its length first, and then the tensors from
where they are, beside whatever collectives run. The sender must leave the tensors alone until it is done; those that change
earlier (the model's buffers change in every forward pass, and are small) are copied first. What is received stands in new
memory until all of it is there, so a receiver whose sender dies has lost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from ..protocol.errors import PeerError
from ..protocol.model import GpuAddress
from .communicator import Communicator
from .state import allocate

MAX_DOCUMENT_BYTES = 1 << 30
HEADER_TAG = 1  # and the next one: length, bytes
TRAILER_TAG = 3
TENSOR_TAG = 16  # of the first tensor


@dataclass(frozen=True)
class Transfer:
    """Who sends the state to whom."""

    source_rank: int
    target_rank: int


def plan_transfers(gpus: Sequence[GpuAddress], holders: Sequence[int], joiners: Sequence[int]) -> tuple[Transfer, ...]:
    """One transfer for each joiner, in the order given. gpus: of all ranks. Raises ValueError if nobody has the state."""
    if joiners and not holders:
        raise ValueError("nobody has the state that the joiners need")
    load = dict.fromkeys(holders, 0)
    transfers: list[Transfer] = []
    for joiner in joiners:
        source = min(holders, key=lambda holder: (gpus[holder].server != gpus[joiner].server, load[holder], holder))
        load[source] += 1
        transfers.append(Transfer(source, joiner))
    return tuple(transfers)


class Pending:
    """Transfers under way."""

    def __init__(self, communicator: Communicator, works: list[dist.Work], payload: list[torch.Tensor]) -> None:
        self._communicator = communicator
        self._works = works
        self._payload = payload  # kept alive

    def wait(self) -> list[torch.Tensor]:
        """Until all is sent (received). Returns the tensors. Raises CommunicatorBroken."""
        for work in self._works:
            self._communicator.wait(work)
        return self._payload


@dataclass(frozen=True)
class Incoming:
    """A state on its way to us: the header is here."""

    header: dict[str, Any]
    pending: Pending

    def wait(self) -> list[torch.Tensor]:
        """The tensors, in the header's order. Raises CommunicatorBroken."""
        return self.pending.wait()


def start_sending(
    communicator: Communicator,
    targets: Sequence[int],
    header: dict[str, Any],
    tensors: Sequence[torch.Tensor],
    mutable: Sequence[torch.Tensor] = (),
) -> Pending:
    """Begin to send a state to each of `targets`. Neither blocks nor reads `mutable` tensors after it returns.

    The others must not change until `wait` of the result has returned. Raises CommunicatorBroken.
    """
    changing = {id(tensor) for tensor in mutable}
    payload = [tensor.detach().clone() if id(tensor) in changing else tensor.detach() for tensor in tensors]
    payload = [tensor.contiguous() for tensor in payload]
    works: list[dist.Work] = []
    for target in targets:
        works += _send_document(communicator, target, HEADER_TAG, header)
        works += [
            communicator.send(tensor, target, TENSOR_TAG + position)
            for position, tensor in enumerate(payload)
            if tensor.numel()
        ]
    return Pending(communicator, works, payload)


def start_receiving(communicator: Communicator, source: int, device: torch.device) -> Incoming:
    """Wait for the header of a state from `source`, and begin to receive its tensors into new memory.

    device: where those come to that are on an accelerator at the source. Raises CommunicatorBroken, PeerError.
    """
    header = _receive_document(communicator, source, HEADER_TAG)
    if not isinstance(header.get("tensors"), list):
        raise PeerError("a training state does not say what its tensors are")
    payload = [allocate(description, device) for description in header["tensors"]]
    works = [
        communicator.receive(tensor, source, TENSOR_TAG + position)
        for position, tensor in enumerate(payload)
        if tensor.numel()
    ]
    return Incoming(header, Pending(communicator, works, payload))


def send_trailer(communicator: Communicator, target: int, document: dict[str, Any]) -> None:
    """Send a small document of plain values after a state. Does not block. Raises CommunicatorBroken."""
    _send_document(communicator, target, TRAILER_TAG, document)


def receive_trailer(communicator: Communicator, source: int) -> dict[str, Any]:
    """The document that follows a state. Raises CommunicatorBroken, PeerError."""
    return _receive_document(communicator, source, TRAILER_TAG)


def _send_document(communicator: Communicator, target: int, tag: int, document: dict[str, Any]) -> list[dist.Work]:
    data = torch.frombuffer(bytearray(msgspec.msgpack.encode(document)), dtype=torch.uint8)
    length = torch.tensor([data.numel()], dtype=torch.int64)
    return [communicator.send(length, target, tag), communicator.send(data, target, tag + 1)]


def _receive_document(communicator: Communicator, source: int, tag: int) -> dict[str, Any]:
    length = torch.zeros(1, dtype=torch.int64)
    communicator.wait(communicator.receive(length, source, tag))
    if not 0 < int(length) <= MAX_DOCUMENT_BYTES:
        raise PeerError(f"rank {source} announces a document of {int(length)} bytes")
    data = torch.empty(int(length), dtype=torch.uint8)
    communicator.wait(communicator.receive(data, source, tag + 1))
    try:
        return msgspec.msgpack.decode(data.numpy().tobytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise PeerError(f"rank {source} sent what is not a document: {error}") from None
