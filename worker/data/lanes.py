"""Processes that read shards, each for some of the virtual workers, while this process computes.

Any process can read a sample with an index; a sample of a shard can only be read by the process that has the shard
open. So the requests of virtual worker v always go to the same process, number v mod `num_workers`. The batches of step
s + 1 are requested when step s begins (`streams`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from multiprocessing.synchronize import Event
from typing import Any

import torch
import torch.multiprocessing  # lets tensors come back in shared memory

from .loading import LoaderOptions
from .reading import Reading, ShardReader, StreamRequest

LOOK_S = 1.0  # interval at which a reading process checks that its parent is alive

_reader: ShardReader | None = None  # set in a reading process


class Lanes:
    """The training process's side: a `streams.Source`."""

    reads_at_once = False

    def __init__(self, reader: ShardReader, options: LoaderOptions) -> None:
        self._reader = reader
        self._options = options
        self._lanes: list[ProcessPoolExecutor] = []  # started at the first request
        self._asked: dict[tuple[int, int], tuple[StreamRequest, Future[Reading]]] = {}  # by number and virtual worker
        self._ended: weakref.finalize[..., Lanes] | None = None

    def ask(self, request: StreamRequest) -> None:
        # of steps that other workers have applied
        overtaken = [key for key in self._asked if key[0] < request.number - 1]
        for key in overtaken:
            del self._asked[key]
        self._asked[request.key] = request, self._lane(request.virtual_worker).submit(_read, request)

    def get(self, request: StreamRequest) -> Reading:
        asked, future = self._asked.pop(request.key)
        assert asked is request, "what is wanted is what was asked for last"
        try:
            return future.result(self._options.timeout or None)
        except TimeoutError:
            if future.done():
                raise  # raised by the script's own code
            limit_s = self._options.timeout
            raise RuntimeError(f"a batch of shards has not come from its process within timeout={limit_s} s") from None

    def close(self) -> None:
        if self._ended is not None:
            self._ended()

    def keep_only(self, virtual_workers: range) -> None:
        self._asked = {key: each for key, each in self._asked.items() if key[1] in virtual_workers}
        for lane in self._lanes:
            lane.submit(_keep_only, virtual_workers)

    def _lane(self, virtual_worker: int) -> ProcessPoolExecutor:
        if not self._lanes:
            wanted = self._options.multiprocessing_context
            context = get_context(wanted) if wanted is None or isinstance(wanted, str) else wanted
            end = context.Event()
            self._lanes = [self._new(context, end, number) for number in range(self._options.num_workers)]
            self._ended = weakref.finalize(self, _end, self._lanes, end)
        return self._lanes[virtual_worker % len(self._lanes)]

    def _new(self, context: BaseContext, end: Event, number: int) -> ProcessPoolExecutor:
        arguments = (self._reader, end, os.getpid(), self._options.worker_init_fn, number)
        return ProcessPoolExecutor(1, context, initializer=_begin, initargs=arguments)


def _end(lanes: list[ProcessPoolExecutor], end: Event) -> None:
    """End the processes without waiting for their reads: a read may hang in a file system that does not answer."""
    end.set()
    for lane in lanes:
        lane.shutdown(wait=False, cancel_futures=True)


def _begin(reader: ShardReader, end: Event, parent: int, init: Callable[[int], Any] | None, number: int) -> None:
    """Initialize a process for reading, which runs as long as its parent lives and has not set `end`."""
    global _reader
    _reader = reader
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(end, parent), daemon=True).start()
    if init is not None:
        init(number)


def _end_with(end: Event, parent: int) -> None:
    """End this process when its parent has been killed or sets `end`, so that no orphan waits for requests."""
    while os.getppid() == parent and not end.wait(LOOK_S):
        pass
    os._exit(1)


def _read(request: StreamRequest) -> Reading:
    assert _reader is not None
    return _reader.read(request)


def _keep_only(virtual_workers: range) -> None:
    assert _reader is not None
    _reader.keep_only(virtual_workers)
