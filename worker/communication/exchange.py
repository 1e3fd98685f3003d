"""Exchange of byte strings among some workers of a generation between two steps (an all-gather of variable sizes).

It uses point-to-point messages rather than collectives. Workers that have no state yet wait for it meanwhile, and take no part.
If a worker gives up and continues with its next step, the others wait in vain; a collective of its step would be mistaken for
theirs.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

from ...protocol.errors import PeerError
from .communicator import Communicator

FIRST_TAG = 1 << 28  # above the tags of state transfers
TAGS = 1 << 27


def tell_each_other(communicator: Communicator, ranks: Sequence[int], name: str, own: bytes) -> list[bytes]:
    """Return what each of `ranks` has contributed under this name, in their order. This worker, one of them, contributes `own`.

    The first rank gathers all contributions and sends them to the others. If it raises CommunicatorBroken, some may have them
    nevertheless.
    """
    if len(ranks) == 1:
        return [own]
    first, *others = ranks
    tag = FIRST_TAG + 2 * (zlib.crc32(name.encode()) % TAGS)
    if communicator.rank != first:
        send_bytes(communicator, [first], tag, own)
        return _parts(receive_bytes(communicator, first, tag))
    told = [own, *(receive_bytes(communicator, rank, tag) for rank in others)]
    lengths = torch.tensor([len(each) for each in told], dtype=torch.int64)
    send_bytes(communicator, others, tag, len(told).to_bytes(8, "big") + lengths.numpy().tobytes() + b"".join(told))
    return told


def send_bytes(communicator: Communicator, ranks: Sequence[int], tag: int, data: bytes) -> None:
    """Send a byte string of any length to these ranks, under the tags `tag` and `tag + 1`. Raises CommunicatorBroken."""
    length = torch.tensor([len(data)], dtype=torch.int64)
    memory = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)
    works = [communicator.send(tensor, rank, tag + i) for rank in ranks for i, tensor in enumerate((length, memory))]
    for work in works:
        communicator.wait(work)


def receive_bytes(communicator: Communicator, rank: int, tag: int) -> bytes:
    """Receive the byte string that this rank has sent by `send_bytes` with the same tag. Raises CommunicatorBroken."""
    length = torch.zeros(1, dtype=torch.int64)
    communicator.wait(communicator.receive(length, rank, tag))
    memory = torch.empty(max(int(length), 1), dtype=torch.uint8)
    communicator.wait(communicator.receive(memory, rank, tag + 1))
    return memory.numpy().tobytes()[: int(length)]


def _parts(data: bytes) -> list[bytes]:
    count = int.from_bytes(data[:8], "big")
    begin = 8 + 8 * count
    if len(data) < begin:
        raise PeerError("what the workers have told each other is cut off")
    lengths = torch.frombuffer(bytearray(data[8:begin]), dtype=torch.int64).tolist()
    if begin + sum(lengths) != len(data):
        raise PeerError("what the workers have told each other is cut off")
    parts = []
    for length in lengths:
        parts.append(data[begin : begin + length])
        begin += length
    return parts
