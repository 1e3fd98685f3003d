"""Transfer of the state from workers that have it to joining workers: execution of a plan (Elan IV; design:
worker-runtime 5).

`transfer_plan.plan_transfers` assigns a sender to each receiver. A transfer sends the header of the state, its length
first, and then the tensors in pieces, beside whatever collectives run. Large tensors are sent from where they are.
Small ones (biases, step counts: most of the tensors, and few of the bytes) are sent together in one buffer, since each
piece costs as much as some hundred kilobytes. The sender must leave the tensors alone until it is done; tensors that
change earlier (the model's buffers change in every forward pass) are copied first. A worker without a state receives
into the tensors' places. A worker with an older state receives into new memory, so that nothing is lost if the sender
dies.

Theory of operation of a plan
-----------------------------
Each rank makes a `Replication` of the same plan and plays its part in it, without a coordinator. Three rules go beyond
single transfers:

* *Headers go first.* They reach every joining worker at once, whatever the tensors must wait for. A joining worker takes
  part in the collectives of the others as soon as it has the header, so no worker stands still for a transfer that has
  to wait for its turn.
* *A joining worker forwards the state*, piece by piece as the pieces arrive, from the memory into which it receives. So
  along a chain of joining workers the last one has the state a few pieces after the first, and the relay's own training
  does not wait for its sending.
* *In turn.* A transfer with others before it on its lanes waits for them. The source and the target of an earlier transfer
  know when it is complete; the target sends a *notice* to other sources that wait for it.

The caller's thread starts every transfer that can start at once; a transfer that has to wait has a thread of its own.
All threads wait through the communicator, so they end when a peer is lost and the communicator is aborted.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from ...protocol.errors import PeerError
from ..communication.communicator import Communicator, CommunicatorBroken
from ..transfer_plan import Transfer as Transfer
from ..transfer_plan import plan_transfers as plan_transfers
from .training_state import allocate

MAX_DOCUMENT_BYTES = 1 << 30
PIECE_BYTES = 8 << 20  # of a tensor; a relay forwards whole pieces
SMALL_BYTES = 64 << 10  # tensors up to this size travel together
ALIGNMENT_BYTES = 16  # alignment of tensors in the common buffer, enough for every type
HEADER_TAG = 1  # HEADER_TAG: length; the next tag: bytes
TRAILER_TAG = 3
NOTICE_TAG = 5
TENSOR_TAG = 16  # of the first piece; later pieces have the following tags

Send = Callable[[torch.Tensor, int, int], dist.Work]
Places = Callable[[dict[str, Any]], Sequence[torch.Tensor] | None]


# ------------------------------------------------------------------------------------------------------------ one transfer


class Pending:
    """Transfers in progress."""

    def __init__(self, communicator: Communicator, works: list[dist.Work], payload: list[torch.Tensor]) -> None:
        self._communicator = communicator
        self._works = works
        self._payload = payload  # memory that the transfers use

    def wait(self) -> list[torch.Tensor]:
        """Block until everything is sent, or received. Returns the tensors. Raises CommunicatorBroken."""
        for work in self._works:
            self._communicator.wait(work)
        return self._payload


@dataclass(frozen=True)
class Incoming:
    """A state that is being received. The header is complete."""

    header: dict[str, Any]
    pending: Pending
    places: Sequence[torch.Tensor] | None  # where the tensors belong; None: they stay in new memory

    def wait(self) -> list[torch.Tensor]:
        """Block until the tensors have arrived, in the header's order: in their places, or in new memory.

        Raises CommunicatorBroken.
        """
        received = self.pending.wait()
        if self.places is None:
            return received
        with torch.no_grad():
            for place, tensor in zip(self.places, received, strict=True):
                if place.data_ptr() != tensor.data_ptr():
                    place.copy_(tensor)
        return list(self.places)


# ------------------------------------------------------------------------------------------------------------------ a plan


class Replication:
    """One rank's part in a plan that all ranks of `communicator` have. For one thread.

    A rank with the state calls `give`, a joining rank `take`; then all may exchange a trailer. Each method is called
    once.
    """

    def __init__(self, communicator: Communicator, transfers: Sequence[Transfer]) -> None:
        self._communicator = communicator
        self._transfers = transfers
        self._outgoing = [
            (position, transfer)
            for position, transfer in enumerate(transfers)
            if transfer.source_rank == communicator.rank
        ]
        self._incoming = next(
            (p for p, transfer in enumerate(transfers) if transfer.target_rank == communicator.rank), None
        )
        self._posting = threading.Lock()  # a communicator's operations are begun by one thread at a time
        self._sending = Pending(communicator, [], [])

    @property
    def source(self) -> int | None:
        """Rank that sends the state to this rank; None if this rank has the state."""
        return None if self._incoming is None else self._transfers[self._incoming].source_rank

    @property
    def targets(self) -> tuple[int, ...]:
        """Ranks to which this rank sends the state."""
        return tuple(transfer.target_rank for _, transfer in self._outgoing)

    def give(
        self, header: dict[str, Any], tensors: Sequence[torch.Tensor], mutable: Sequence[torch.Tensor] = ()
    ) -> Pending:
        """Begin to send the state to this rank's targets.

        Does not block, and does not read `mutable` tensors after it returns. The other tensors must not change until
        `wait` of the result, or `sent`, has returned. Raises CommunicatorBroken.
        """
        if self._outgoing:
            changing = {id(tensor) for tensor in mutable}
            payload = [tensor.detach().clone() if id(tensor) in changing else tensor.detach() for tensor in tensors]
            payload, pieces = _pack([tensor.contiguous() for tensor in payload], fill=True)
            self._sending = Pending(self._communicator, self._serve(_encode(header), pieces, []), payload)
        return self._sending

    def take(self, device: torch.device, places: Places = lambda header: None) -> Incoming:
        """Wait for the header, and begin to receive the tensors and to forward them.

        places: a function from the header to the places of its tensors; None: receive into new memory. Neither memory
        may change until `sent` has returned. device: where new memory is allocated for tensors that are on an
        accelerator at the source.

        Raises CommunicatorBroken, PeerError.
        """
        source = self.source
        assert source is not None
        data = _receive_bytes(self._communicator, source, HEADER_TAG)
        header = _decode(data, source)
        if not isinstance(header.get("tensors"), list):
            raise PeerError("a training state does not say what its tensors are")
        own = places(header)
        memory = [
            place if place is not None and _fits(place, description, device) else allocate(description, device)
            for description, place in zip(header["tensors"], own or itertools.repeat(None), strict=False)
        ]
        payload, pieces = _pack([tensor.detach() for tensor in memory], fill=False)
        with self._posting:
            arriving = [
                self._communicator.receive(piece, source, TENSOR_TAG + number) for number, piece in enumerate(pieces)
            ]
        self._sending = Pending(
            self._communicator, [*self._serve(data, pieces, arriving), *self._notify(arriving)], payload
        )
        return Incoming(header, Pending(self._communicator, list(arriving), payload), own)

    def sent(self) -> None:
        """Block until this rank has sent everything; before the communicator is retired. Raises CommunicatorBroken."""
        self._sending.wait()

    def send_trailer(self, document: dict[str, Any]) -> None:
        """Send a small document of plain values after the state to this rank's targets. Does not block.

        Raises CommunicatorBroken.
        """
        self._send_to_all(TRAILER_TAG, _encode(document))

    def receive_trailer(self) -> dict[str, Any]:
        """Return the document that follows the state, and forward it. Raises CommunicatorBroken, PeerError."""
        source = self.source
        assert source is not None
        data = _receive_bytes(self._communicator, source, TRAILER_TAG)
        self._send_to_all(TRAILER_TAG, data)
        return _decode(data, source)

    # -- sending

    def _send(self, tensor: torch.Tensor, target: int, tag: int) -> dist.Work:
        with self._posting:
            return self._communicator.send(tensor, target, tag)

    def _send_to_all(self, tag: int, data: torch.Tensor) -> list[dist.Work]:
        return [work for target in self.targets for work in _send_bytes(self._send, target, tag, data)]

    def _serve(self, header: torch.Tensor, pieces: list[torch.Tensor], arriving: list[dist.Work]) -> list[dist.Work]:
        """Send to all targets: now, or as the pieces arrive and each transfer's turn comes.

        arriving: empty if this rank has the state.
        """
        works = self._send_to_all(HEADER_TAG, header)
        notices = self._expect_notices()
        begun: dict[int, list[dist.Work]] = {}
        for position, transfer in self._outgoing:
            first: list[dist.Work] = []
            for earlier in transfer.after:
                if earlier in notices:
                    first.append(notices[earlier])
                else:
                    first += arriving if earlier == self._incoming else begun[earlier]
            if first or arriving:
                begun[position] = [_InBackground(self._sender(transfer.target_rank, pieces, first, arriving))]
            else:
                begun[position] = self._send_pieces(transfer.target_rank, pieces, [])
            works += begun[position]
        return works

    def _sender(
        self, target: int, pieces: list[torch.Tensor], first: list[dist.Work], arriving: list[dist.Work]
    ) -> Callable[[], None]:
        def run() -> None:
            with _device_of(pieces):
                for work in first:
                    self._communicator.wait(work)
                for work in self._send_pieces(target, pieces, arriving):
                    self._communicator.wait(work)

        return run

    def _send_pieces(self, target: int, pieces: list[torch.Tensor], arriving: list[dist.Work]) -> list[dist.Work]:
        """Send each piece as soon as it has arrived."""
        works: list[dist.Work] = []
        for number, piece in enumerate(pieces):
            if arriving:
                self._communicator.wait(arriving[number])
            works.append(self._send(piece, target, TENSOR_TAG + number))
        return works

    # -- order of transfers

    def _expect_notices(self) -> dict[int, dist.Work]:
        """Post receives for the notices of transfers between other ranks that precede this rank's transfers."""
        rank = self._communicator.rank
        awaited = {earlier for _, transfer in self._outgoing for earlier in transfer.after}
        return {
            earlier: self._communicator.receive(_notice(), self._transfers[earlier].target_rank, NOTICE_TAG)
            for earlier in sorted(awaited)
            if rank not in (self._transfers[earlier].source_rank, self._transfers[earlier].target_rank)
        }

    def _notify(self, arriving: list[dist.Work]) -> list[dist.Work]:
        """Send notices when all pieces have arrived, to the sources that wait for this transfer and do not know."""
        knowing = (self._communicator.rank, self.source)
        waiting = sorted(
            {t.source_rank for t in self._transfers if self._incoming in t.after and t.source_rank not in knowing}
        )
        if not waiting:
            return []

        def run() -> None:
            for work in arriving:
                self._communicator.wait(work)
            for work in [self._send(_notice(), rank, NOTICE_TAG) for rank in waiting]:
                self._communicator.wait(work)

        return [_InBackground(run)]


class _InBackground(dist.Work):
    """Work of a thread, to be waited for like any operation."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self._run = run
        self._error = "the thread of a transfer has failed"  # cleared on success
        self._completed = threading.Event()
        threading.Thread(target=self._main, name="elasticd-transfer", daemon=True).start()

    def _main(self) -> None:
        try:
            self._run()
            self._error = ""
        except CommunicatorBroken as error:
            self._error = str(error)
        finally:
            self._completed.set()

    def is_completed(self) -> bool:
        return self._completed.is_set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._completed.wait()
        if self._error:
            raise RuntimeError(self._error)  # the type that works raise
        return True


# ------------------------------------------------------------------------------------------------------- pieces and bytes


def _pack(tensors: list[torch.Tensor], fill: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Move small tensors to common buffers, and return all tensors and their memory in pieces: the same at both ends.

    fill: copy the contents of small tensors. Empty tensors have no piece.
    """
    placed, pieces = list(tensors), list[torch.Tensor]()
    for on_host in (True, False):
        small = [
            position
            for position, tensor in enumerate(tensors)
            if 0 < tensor.nbytes <= SMALL_BYTES and (tensor.device.type == "cpu") is on_host
        ]
        buffer, views = _together([tensors[position] for position in small])
        for position, view in zip(small, views, strict=True):
            if fill:
                view.copy_(tensors[position])
            placed[position] = view
        pieces += _split(buffer)
    for tensor in tensors:
        if tensor.nbytes > SMALL_BYTES:
            pieces += _split(tensor.view(-1).view(torch.uint8))
    return placed, pieces


def _fits(tensor: torch.Tensor, description: list[Any], device: torch.device) -> bool:
    """Return whether a tensor of this description can be received directly into `tensor`."""
    where = device if description[3] == "device" else torch.device("cpu")
    return tensor.is_contiguous() and tensor.device.type == where.type


def _together(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a buffer for tensors of one device, and a view into it for each tensor."""
    sizes = [-(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for tensor in tensors]
    device = tensors[0].device if tensors else torch.device("cpu")
    buffer = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
    starts = itertools.accumulate(sizes[:-1], initial=0)
    views = [
        buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(starts, tensors, strict=False)
    ]
    return buffer, views


def _split(memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.split(memory, PIECE_BYTES) if memory.numel() else ()


def _device_of(pieces: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[object]:
    """Return a context with the pieces' device as the current one: a new thread begins with the first accelerator."""
    device = next((piece.device for piece in pieces if piece.device.type == "cuda"), None)
    return contextlib.nullcontext() if device is None else torch.cuda.device(device)


def _notice() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8)


def _encode(document: dict[str, Any]) -> torch.Tensor:
    return torch.frombuffer(bytearray(msgspec.msgpack.encode(document)), dtype=torch.uint8)


def _decode(data: torch.Tensor, source: int) -> dict[str, Any]:
    try:
        return msgspec.msgpack.decode(data.numpy().tobytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise PeerError(f"rank {source} sent what is not a document: {error}") from None


def _send_bytes(send: Send, target: int, tag: int, data: torch.Tensor) -> list[dist.Work]:
    return [send(torch.tensor([data.numel()], dtype=torch.int64), target, tag), send(data, target, tag + 1)]


def _receive_bytes(communicator: Communicator, source: int, tag: int) -> torch.Tensor:
    length = torch.zeros(1, dtype=torch.int64)
    communicator.wait(communicator.receive(length, source, tag))
    if not 0 < int(length) <= MAX_DOCUMENT_BYTES:
        raise PeerError(f"rank {source} announces a document of {int(length)} bytes")
    data = torch.empty(int(length), dtype=torch.uint8)
    communicator.wait(communicator.receive(data, source, tag + 1))
    return data
