"""A real rendezvous server, and real communicators in the threads of one process.

The *device* lane runs the code for GPUs without any: its groups are Gloo groups with the interface of NCCL's, and its tensors
are all except int64 ones.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import zmq

from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import StoreAdd, StoreGet, StoreSet
from elasticd.runtime import transport
from elasticd.worker.communication.communicator import Communicator, Rendezvous, RendezvousStore
from elasticd.worker.communication.groups import Groups, add_device_groups, build_host_groups

torch.set_num_threads(1)
R = TypeVar("R")
Requests = StoreSet | StoreGet | StoreAdd


class RendezvousServer:
    """The rendezvous part of a leader: a ROUTER socket around a `Rendezvous`."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = transport.router(self.context)
        self._directory = tempfile.TemporaryDirectory()
        self.address = transport.bind(self._router, f"ipc://{self._directory.name}/leader")
        self._rendezvous = Rendezvous()
        self._codec: Codec[Requests] = Codec(Requests)
        self._lock = threading.Lock()
        self._cancel: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> RendezvousServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._router.close()
        self.context.destroy(linger=0)
        self._directory.cleanup()

    def cancel(self, scope: str) -> None:
        with self._lock:
            self._cancel.append(scope)

    def store(self, name: str, scope: str = "1/1", timeout_s: float = 30.0) -> RendezvousStore:
        return RendezvousStore(self.context, self.address, f"{name}/{scope}".encode(), scope, timeout_s)

    def _serve(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                scopes, self._cancel = self._cancel, []
            answers = [answer for scope in scopes for answer in self._rendezvous.cancel(scope)]
            if self._router.poll(10):
                peer, data = self._router.recv_multipart()
                answers += self._rendezvous.handle(peer, self._codec.decode(data))
            for peer, answer in answers:
                transport.send(self._router, peer, self._codec.encode(answer))


class Kernel(dist.Work):
    """An operation of a device group: it completes while its group's device runs, and later work can be ordered after it."""

    def __init__(self, group: DeviceGroup, work: dist.Work, tensors: tuple[Any, ...]) -> None:
        super().__init__()
        self._group = group
        self._tensors = tensors
        self._error: RuntimeError | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: dist.Work) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            self._error = error
        self._group.running.wait()
        self._done.set()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        assert self._done.is_set(), "this would stop the host"
        if self._error is not None:
            raise self._error
        return True

    def block_current_stream(self) -> None:
        self._group.ordered += 1


class DeviceGroup:
    """A Gloo group with the interface of NCCL's."""

    def __init__(self, gloo: dist.ProcessGroup, network: str = "") -> None:
        self._gloo = gloo
        self.network = network
        self.ordered = 0  # number of operations that later ones were ordered after
        self.aborted = 0
        self.running = threading.Event()
        self.running.set()
        self.abort_lasts = threading.Event()
        self.abort_lasts.set()

    def __getattr__(self, name: str) -> Callable[..., Kernel]:
        operation = getattr(self._gloo, name)
        return lambda *args: Kernel(self, operation(*args), args)

    def abort(self) -> None:
        self.aborted += 1
        self.abort_lasts.wait(10.0)
        self.running.set()


class DeviceLane(Groups):
    """Everything except control words is on the device."""

    def collective(self, tensor: torch.Tensor) -> dist.ProcessGroup:
        return self.host if tensor.dtype is torch.int64 else self.device

    def transfer(self, tensor: torch.Tensor) -> dist.ProcessGroup:
        return self.host_transfer if tensor.dtype is torch.int64 else self.device_transfer


def device_group(
    store: Any, rank: int, size: int, timeout: timedelta, device: torch.device, network: str
) -> DeviceGroup:
    """Replaces `groups.nccl`."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return DeviceGroup(dist.ProcessGroupGloo(store, rank, size, options), network)


def build(
    lane: str, store: RendezvousStore, rank: int, size: int, gpu: str | None = None, layers: str = ""
) -> Communicator:
    """A communicator of one rank. lane: host, or device. layers: link layers of its server's InfiniBand adapters."""
    if lane == "host":
        return Communicator.build("gloo", store, rank, size, "127.0.0.1", 30.0)
    timeout, device = timedelta(seconds=30), torch.device("cpu")
    try:
        host = build_host_groups(store, rank, size, "127.0.0.1", timeout)
        made = add_device_groups(host, store, rank, size, timeout, device, gpu or f"gpu-{rank}", device_group, layers)
    finally:
        store.close()
    groups = DeviceLane(made.host, made.host_transfer, made.device, made.device_transfer)
    return Communicator(rank, size, groups, 30.0, (store,))


def run_ranks(size: int, run: Callable[[Communicator], R], lane: str = "host") -> list[R]:
    """Run on each of `size` ranks, each in a thread with its own communicator. Returns the results by rank."""
    with RendezvousServer() as server, ThreadPoolExecutor(size) as pool:

        def rank_main(rank: int) -> Any:
            communicator = build(lane, server.store(f"w{rank}"), rank, size)
            try:
                return run(communicator)
            finally:
                communicator.retire()

        return list(pool.map(rank_main, range(size)))
