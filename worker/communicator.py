"""Communicators: one generation's process group, made in the background, abandoned without hanging.

Findings that shape this module (torch 2.13): process groups can be made directly, many per process, without the global
default group. A group's operation on a lost peer fails only at the ranks that talk to it; the others would wait for the timeout. So
nobody ever blocks in `wait()`: completion is polled together with a flag that the control thread sets, and an abandoned group
is handed to a reaper thread, since destroying it takes a while and may take for ever. An abandoned operation still owns its
tensors.

The rendezvous goes through the leader's control plane, not a TCPStore: a dictionary per attempt at a generation, whose waiters
can be told that the attempt is given up.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import zmq

from ..protocol.codec import Codec
from ..protocol.messages import StoreAdd, StoreGet, StoreSet, StoreValue
from ..runtime import transport

POLL_FIRST_S = 20e-6
POLL_LONGEST_S = 1e-3
CANCEL_POLL_MS = 20
MAX_SCOPES = 64


class CommunicatorBroken(Exception):
    """The communicator has lost a member or was abandoned: nothing can be done in it any more."""


class RendezvousCancelled(Exception):
    """The attempt that this rendezvous belongs to has been given up."""


class Rendezvous:
    """The leader's side: keys and waiters by scope (one attempt at one generation). Pure."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, bytes]] = {}
        self._waiting: dict[str, list[tuple[str, bytes]]] = {}

    def handle(self, peer: bytes, message: StoreSet | StoreGet | StoreAdd) -> list[tuple[bytes, StoreValue]]:
        """Take a request in; the answers that it brings about, with their receivers."""
        values = self._scope(message.scope)
        match message:
            case StoreSet(key=key, value=value):
                values[key] = value
                waiting = self._waiting.get(message.scope, [])
                self._waiting[message.scope] = [(k, p) for k, p in waiting if k != key]
                return [(p, StoreValue(key=key, value=value)) for k, p in waiting if k == key]
            case StoreGet(key=key):
                if key in values:
                    return [(peer, StoreValue(key=key, value=values[key]))]
                self._waiting.setdefault(message.scope, []).append((key, peer))
                return []
            case StoreAdd(key=key, amount=amount):
                values[key] = str(int(values.get(key, b"0")) + amount).encode()
                return [(peer, StoreValue(key=key, value=values[key]))]

    def drop(self, scope: str) -> list[tuple[bytes, StoreValue]]:
        """Forget a scope; whoever still waits in it is told that it is cancelled."""
        self._values.pop(scope, None)
        waiting = self._waiting.pop(scope, [])
        return [(peer, StoreValue(key=key, value=b"", cancelled=True)) for key, peer in waiting]

    def _scope(self, scope: str) -> dict[str, bytes]:
        if scope not in self._values and len(self._values) >= MAX_SCOPES:
            self.drop(next(iter(self._values)))
        return self._values.setdefault(scope, {})


class RendezvousStore(dist.Store):
    """A worker's side: a torch Store whose waits end when the attempt is given up. For one thread, but for `cancel`."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        leader_address: str,
        identity: bytes,
        scope: str,
        timeout_s: float,
    ) -> None:
        super().__init__()
        self._scope = scope
        self._wait_limit_s = timeout_s
        self._cancelled = threading.Event()
        self._codec: Codec[StoreValue] = Codec(StoreValue)
        self._socket = transport.dealer(context, leader_address, identity)

    def set(self, key: str, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._send(StoreSet(scope=self._scope, key=key, value=data))

    def get(self, key: str) -> bytes:
        self._send(StoreGet(scope=self._scope, key=key))
        return self._receive(key, self._wait_limit_s)

    def add(self, key: str, amount: int) -> int:
        self._send(StoreAdd(scope=self._scope, key=key, amount=amount))
        return int(self._receive(key, self._wait_limit_s))

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:  # type: ignore[override]
        for key in keys:
            self._send(StoreGet(scope=self._scope, key=key))
            self._receive(key, min(self._wait_limit_s, timeout.total_seconds()) if timeout else self._wait_limit_s)

    def has_extended_api(self) -> bool:
        return False

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Nothing: a rendezvous has the limit that it was made with."""

    def cancel(self) -> None:
        """End all waits, now and later, from any thread."""
        self._cancelled.set()

    def close(self) -> None:
        """Close the connection; the store must not be used afterwards."""
        self._socket.close()

    def _send(self, message: StoreSet | StoreGet | StoreAdd) -> None:
        if self._cancelled.is_set():
            raise RendezvousCancelled(f"rendezvous {self._scope} was given up")
        self._socket.send(self._codec.encode(message))

    def _receive(self, key: str, limit_s: float) -> bytes:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if self._cancelled.is_set():
                raise RendezvousCancelled(f"rendezvous {self._scope} was given up")
            if not self._socket.poll(CANCEL_POLL_MS):
                continue
            answer = self._codec.decode(self._socket.recv())
            if answer.cancelled:
                raise RendezvousCancelled(f"rendezvous {self._scope} was given up by its leader")
            if answer.key == key:
                return answer.value
        raise TimeoutError(f"rendezvous {self._scope}: nobody set {key!r} within {limit_s:.0f} s")


def _gloo(store: dist.Store, rank: int, size: int, address: str, timeout_s: float) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._threads = 2
    options._timeout = datetime.timedelta(seconds=timeout_s)
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: dist.Store, rank: int, size: int, timeout_s: float) -> Any:
    options = dist.ProcessGroupNCCL.Options()  # type: ignore[attr-defined]
    options.config.blocking = 0
    options._timeout = datetime.timedelta(seconds=timeout_s)
    return dist.ProcessGroupNCCL(store, rank, size, options)  # type: ignore[attr-defined]


class Communicator:
    """The workers of one generation, as ranks. Operations return at once; `wait` is the only place where time passes.

    On GPUs the data goes through NCCL, and control words and small CPU state through a Gloo group beside it; on CPUs all goes
    through Gloo.
    """

    def __init__(self, data: Any, control: Any, store: RendezvousStore | None, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._data = data
        self._control = control
        self._store = store  # must live as long as the groups: they call its Python methods
        self._aborted = threading.Event()

    @classmethod
    def alone(cls) -> Communicator:
        """The communicator of one worker: every operation is done at once."""
        return cls(None, None, None, 0, 1)

    @classmethod
    def build(
        cls, backend: str, store: RendezvousStore, rank: int, size: int, address: str, timeout_s: float
    ) -> Communicator:
        """Meet the other members and connect to them; blocks, so call it in the background.

        backend: "gloo" or "nccl". address: the IP address that peers reach this worker at. timeout_s: of an operation.
        Raises RendezvousCancelled, TimeoutError, or what the library raises.
        """
        control = _gloo(dist.PrefixStore("gloo", store), rank, size, address, timeout_s)
        data = _nccl(dist.PrefixStore("nccl", store), rank, size, timeout_s) if backend == "nccl" else control
        return cls(data, control, store, rank, size)

    @property
    def aborted(self) -> bool:
        return self._aborted.is_set()

    def abort(self) -> None:
        """Make whoever waits in this communicator stop waiting, from any thread."""
        self._aborted.set()

    def wait(self, work: dist.Work | None) -> None:
        """Return when `work` is done. Raises CommunicatorBroken if it fails or the communicator is abandoned."""
        if work is None:
            return
        pause = POLL_FIRST_S
        while not work.is_completed():
            if self._aborted.is_set():
                raise CommunicatorBroken("abandoned")
            time.sleep(pause)
            pause = min(pause * 1.5, POLL_LONGEST_S)
        try:
            work.wait()
        except RuntimeError as error:
            raise CommunicatorBroken(str(error).splitlines()[0][:200]) from None

    def _group(self, tensor: torch.Tensor) -> Any:
        return self._data if tensor.is_cuda else self._control

    def _issue(self, issue: Any) -> dist.Work:
        """Start an operation. A group with a lost peer may already refuse here."""
        if self._aborted.is_set():
            raise CommunicatorBroken("abandoned")
        try:
            work: dist.Work = issue()
        except RuntimeError as error:
            raise CommunicatorBroken(str(error).splitlines()[0][:200]) from None
        return work

    def all_reduce(self, tensor: torch.Tensor) -> dist.Work | None:
        """Sum over all ranks, in place."""
        if self.size == 1:
            return None
        return self._issue(lambda: self._group(tensor).allreduce([tensor]))

    def all_reduce_max(self, tensor: torch.Tensor) -> dist.Work | None:
        """Elementwise maximum over all ranks, in place."""
        if self.size == 1:
            return None
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        return self._issue(lambda: self._group(tensor).allreduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, root: int) -> dist.Work | None:
        """`root`'s tensor to all ranks, in place."""
        if self.size == 1:
            return None
        options = dist.BroadcastOptions()
        options.rootRank = root
        return self._issue(lambda: self._group(tensor).broadcast([tensor], options))

    def all_to_all(
        self, output: torch.Tensor, given: torch.Tensor, output_rows: Sequence[int], given_rows: Sequence[int]
    ) -> dist.Work | None:
        """Rows of `given` (the first `given_rows[0]` to rank 0, …) to the ranks; from them, in rank order, `output`."""
        if self.size == 1:
            output.copy_(given)
            return None
        return self._issue(lambda: self._group(given).alltoall_base(output, given, list(output_rows), list(given_rows)))

    def all_gather(self, output: torch.Tensor, given: torch.Tensor) -> dist.Work | None:
        """All ranks' `given` (equally long), in rank order, into the flat `output`."""
        if self.size == 1:
            output.copy_(given)
            return None
        return self._issue(lambda: self._group(given)._allgather_base(output, given))

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> dist.Work:
        """`tensor` to `rank`, beside whatever collectives are running. It must not change until the work is done."""
        return self._issue(lambda: self._group(tensor).send([tensor], rank, tag))

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> dist.Work:
        """The tensor that `rank` sends under `tag`."""
        return self._issue(lambda: self._group(tensor).recv([tensor], rank, tag))

    def retire(self) -> None:
        """Nobody will use this communicator any more: destroy it in the background. It may take for ever; nobody waits."""
        self._aborted.set()
        if self._control is not None:
            groups = [self._data, self._control, self._store]
            self._data = self._control = self._store = None
            threading.Thread(target=groups.clear, name="elasticd-reaper", daemon=True).start()
