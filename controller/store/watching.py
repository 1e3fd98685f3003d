"""Watch of changes in etcd, reported in the order of revisions, also across lost connections and members.

A separate thread reads the stream of etcd, and puts the changes into a bounded queue. When the stream breaks, the
thread opens another one, from the first unreported revision on. If etcd has compacted that revision, the watch ends
with `Compacted`.
"""

from __future__ import annotations

import itertools
import queue
import threading
from typing import Any

from .etcd_connection import TOKEN_TIMEOUT_S, Connection, Endpoint, Failure, OpenStore, judge
from .interface import Changes, Compacted, Delete, Put, Sealing

MOST_WAITING = 1024  # revisions in the queue; etcd keeps further ones
AGAIN_S = 0.2  # pause before the next stream is opened
DELETED = 1  # type of an event in etcd's API


class EtcdWatch:
    """Implementation of `interface.Watch` for the keys k with first <= k < end.

    Only keys that begin with `data` are reported, without this prefix. Changes of other keys appear as revisions
    without writes.
    """

    def __init__(
        self,
        connection: Connection,
        first: bytes,
        end: bytes,
        data: bytes,
        revision: int,
        seals: Sealing | None = None,
    ) -> None:
        self._seals = seals
        self._connection, self._rpc = connection, connection.rpc
        self._first, self._end, self._data = first, end, data
        self._revision = revision  # the next revision to report
        self._waiting: queue.Queue[Changes | Compacted] = queue.Queue(MOST_WAITING)
        self._closed = threading.Event()
        self._stream: Any = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="etcd-watch", daemon=True)
        self._thread.start()

    def next(self, timeout_s: float) -> Changes | None:
        try:
            found = self._waiting.get(timeout=timeout_s) if timeout_s > 0 else self._waiting.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, Compacted):
            self._waiting.put(found)  # put back, so that the next call raises it too
            raise found
        return found

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.cancel()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._closed.is_set():
            endpoint = self._connection.endpoint
            try:
                self._follow(endpoint)
            except Compacted as error:
                self._put(error)
                return
            except OpenStore:
                self._connection.leave(endpoint)  # the next call to this member reports the error
            except self._connection.error as error:
                if self._closed.is_set():
                    return
                if judge(error) is Failure.TOKEN:
                    endpoint.forget_token()
                else:
                    self._connection.leave(endpoint)
            self._closed.wait(AGAIN_S)

    def _follow(self, endpoint: Endpoint) -> None:
        """Read one stream to its end. Raises grpc.RpcError, Compacted, OpenStore."""
        wanted = self._rpc.WatchRequest(
            create_request=self._rpc.WatchCreateRequest(
                key=self._first, range_end=self._end, start_revision=self._revision
            )
        )
        ended = threading.Event()
        endpoint.check_closed(TOKEN_TIMEOUT_S)
        with self._lock:
            if self._closed.is_set():
                return
            self._stream = endpoint.watch.Watch(_asking(wanted, ended), metadata=endpoint.metadata(TOKEN_TIMEOUT_S))
        try:
            for answer in self._stream:
                if answer.compact_revision:
                    raise Compacted(f"the history before revision {answer.compact_revision} is not kept any more")
                if answer.canceled:
                    endpoint.forget_token()  # the token may have expired
                    return
                for revision, events in itertools.groupby(answer.events, key=lambda event: event.kv.mod_revision):
                    self._put(Changes(int(revision), tuple(self._writes(events))))
                    self._revision = int(revision) + 1
        finally:
            ended.set()
            self._stream.cancel()

    def _writes(self, events: Any) -> Any:
        for event in events:
            if event.kv.key.startswith(self._data):
                key = event.kv.key[len(self._data) :].decode()
                value = None if event.type == DELETED else event.kv.value
                if value is not None and self._seals is not None:
                    value = self._seals.opened(key, value)
                yield Delete(key) if value is None else Put(key, value)

    def _put(self, found: Changes | Compacted) -> None:
        while not self._closed.is_set():
            try:
                self._waiting.put(found, timeout=1.0)
                return
            except queue.Full:
                continue


def _asking(wanted: Any, ended: threading.Event) -> Any:
    """Yield the one request of a watch, and keep the stream of requests open until `ended` is set."""
    yield wanted
    ended.wait()
