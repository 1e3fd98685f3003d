"""Processes that read shards, each for its share of the virtual workers, while this one computes.

A sample with an index can be read by anybody; one of a shard only by whoever has the shard open. So the requests of virtual
worker v always go to the same process, number v mod `workers`. What step s + 1 needs is asked for when step s begins (`streams`).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
import torch.multiprocessing  # so that tensors come back in shared memory

from .reading import Reading, ShardReader, StreamRequest

LOOK_S = 1.0  # how often a reading process looks whether the one that it reads for is still there

_reader: ShardReader | None = None  # of a reading process


class Lanes:
    """The training process's side: a `streams.Source`."""

    reads_at_once = False

    def __init__(self, reader: ShardReader, workers: int, worker_init_fn: Callable[[int], Any] | None = None) -> None:
        """worker_init_fn: called in each process when it begins, with its number."""
        self._reader = reader
        self._init = worker_init_fn
        self._workers = workers
        self._lanes: list[ProcessPoolExecutor] = []  # made when something is first asked for
        self._asked: dict[tuple[int, int], tuple[StreamRequest, Future[Reading]]] = {}  # by step and virtual worker

    def ask(self, request: StreamRequest) -> None:
        overtaken = [key for key in self._asked if key[0] < request.step - 1]  # of steps that others have applied
        for key in overtaken:
            del self._asked[key]
        self._asked[request.key] = request, self._lane(request.virtual_worker).submit(_read, request)

    def get(self, request: StreamRequest) -> Reading:
        asked, future = self._asked.pop(request.key)
        assert asked is request, "what is wanted is what was asked for last"
        return future.result()

    def keep_only(self, virtual_workers: range) -> None:
        self._asked = {key: each for key, each in self._asked.items() if key[1] in virtual_workers}
        for lane in self._lanes:
            lane.submit(_keep_only, virtual_workers)

    def _lane(self, virtual_worker: int) -> ProcessPoolExecutor:
        if not self._lanes:
            self._lanes = [self._new(number) for number in range(self._workers)]
            weakref.finalize(self, _end, self._lanes)
        return self._lanes[virtual_worker % self._workers]

    def _new(self, number: int) -> ProcessPoolExecutor:
        arguments = (self._reader, os.getpid(), self._init, number)
        return ProcessPoolExecutor(1, get_context(), initializer=_begin, initargs=arguments)


def _end(lanes: list[ProcessPoolExecutor]) -> None:
    for lane in lanes:
        lane.shutdown(wait=False, cancel_futures=True)


def _begin(reader: ShardReader, parent: int, init: Callable[[int], Any] | None, number: int) -> None:
    """This process reads from now on, as long as its parent lives."""
    global _reader
    _reader = reader
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if init is not None:
        init(number)


def _end_with(parent: int) -> None:
    """A process that is killed leaves nobody behind who waits for its requests."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def _read(request: StreamRequest) -> Reading:
    assert _reader is not None
    return _reader.read(request)


def _keep_only(virtual_workers: range) -> None:
    assert _reader is not None
    _reader.keep_only(virtual_workers)
