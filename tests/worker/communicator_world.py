"""A real rendezvous server, and real communicators in the threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

import torch
import zmq

from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import StoreAdd, StoreGet, StoreSet
from elasticd.runtime import transport
from elasticd.worker.communicator import Communicator, Rendezvous, RendezvousStore

torch.set_num_threads(1)
R = TypeVar("R")
Requests = StoreSet | StoreGet | StoreAdd


class RendezvousServer:
    """What the leader does for it, and nothing else: a ROUTER around a `Rendezvous`."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = transport.router(self.context)
        self.address = transport.bind(self._router, "tcp://127.0.0.1:*")
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


def run_ranks(size: int, run: Callable[[Communicator], R]) -> list[R]:
    """`run` on each of `size` ranks, each in a thread with a communicator of its own. Their results by rank."""
    with RendezvousServer() as server, ThreadPoolExecutor(size) as pool:

        def rank_main(rank: int) -> Any:
            communicator = Communicator.build("gloo", server.store(f"w{rank}"), rank, size, "127.0.0.1", 30.0)
            try:
                return run(communicator)
            finally:
                communicator.retire()

        return list(pool.map(rank_main, range(size)))
