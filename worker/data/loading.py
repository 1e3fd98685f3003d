"""Micro-batches for the virtual workers of this worker, optionally read ahead in other processes (EasyScale 3.2, Fig.
7).

The content of a batch is a pure function of (seed, step, virtual worker): the samples by `sampling.Schedule`, their
random augmentation by a seed of their own. So any process may read it at any time. The data workers are shared by all
virtual workers that are hosted here, and read ahead across steps and epochs. When the assignment changes, batches that
were read for other workers' virtual workers are dropped, and batches that are still wanted are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ..virtual import derive_seed, seed_everything
from .fetching import columns, fetch, move_to, rows_of
from .sampling import Schedule


@dataclass(frozen=True)
class LoaderOptions:
    """Options for reading batches: the arguments of a `DataLoader`, under its names."""

    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0  # processes that read ahead; 0: batches are read in this process when they are needed
    prefetch_factor: int = 2  # batches that each of them reads ahead
    worker_init_fn: Callable[[int], Any] | None = None
    pin_memory: bool | None = None  # None: pinned if there is a GPU
    timeout: float = 0  # seconds after which a batch that has not come from a process is an error; 0: never
    multiprocessing_context: Any = None


class Request(NamedTuple):
    """One micro-batch, with everything on which reading depends."""

    step: int
    virtual_worker: int
    epoch: int
    seed: int
    indices: tuple[Any, ...]


class _Reader(Dataset[Any]):
    """Reads the batch of a request, in a data worker's process or in this one."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._columns = columns(dataset) if collate_fn is None else None  # whose rows are taken as they are
        self.draws = self._columns is None
        self._epoch: int | None = None

    def __getitem__(self, request: Request) -> tuple[tuple[int, int], Any]:
        if request.epoch != self._epoch:
            self._epoch = request.epoch
            if callable(set_epoch := getattr(self.dataset, "set_epoch", None)):
                set_epoch(request.epoch)
        key = request.step, request.virtual_worker
        if self._columns is not None and self._columns is self.dataset.tensors:
            return key, rows_of(self._columns, request.indices)
        if self.draws:
            seed_everything(request.seed)
        return key, fetch(self.dataset, request.indices, self._collate_fn)


class Loader:
    """The micro-batches, in the order in which steps request them."""

    reads_any = True

    def __init__(
        self, dataset: Any, schedule: Schedule, seed: int, device: torch.device, options: LoaderOptions | None = None
    ) -> None:
        """A dataset with `set_epoch(epoch)` gets the epoch before its first sample."""
        self._options = options or LoaderOptions()
        self._reader = _Reader(dataset, self._options.collate_fn)
        self._schedule = schedule
        self._seed = seed
        self._device = device
        self._hosted = range(0)
        self._cursor = (0, 0)  # step and virtual worker of the batch to be read ahead next
        self._end = 0  # step
        self._oldest = 0  # the first step whose batches are still wanted
        self._results: Iterator[tuple[tuple[int, int], Any]] | None = None
        self._under_way: set[tuple[int, int]] = set()  # requested, not yet received
        self._stock: dict[tuple[int, int], Any] = {}  # received before it was needed

    @property
    def reads_ahead(self) -> bool:
        """Whether other processes read, with copies of the dataset of their own."""
        return self._options.num_workers > 0

    def assign(self, step: int, hosted: range, end: int | None) -> None:
        """Read for the virtual workers `hosted`, in ascending order, from `step` on until step `end`."""
        assert end is not None, "data with an index has a known number of steps"
        self._hosted = hosted
        self._end = end
        self._cursor = (step, hosted.start)
        self._stock = {key: batch for key, batch in self._stock.items() if key[0] >= step and key[1] in hosted}

    def begin(self, step: int) -> None:
        """Take note that batches of `step` and of later ones are wanted."""
        self._oldest = step

    def applied(self, step: int) -> None:
        """Do nothing: data with an index has no state."""

    def close(self) -> None:
        """End reading. PyTorch ends its processes with their iterator."""
        self._results = None
        self._stock.clear()

    def batch(self, step: int, virtual_worker: int) -> Any:
        """Return the micro-batch, on the device.

        Reading draws random numbers, so the caller seeds the generators afterwards.
        """
        if self._options.num_workers == 0:
            _, batch = self._reader[self._request(step, virtual_worker)]
        else:
            batch = self._ahead((step, virtual_worker))
        return move_to(batch, self._device)

    def again(self, step: int) -> Any:
        """Return virtual worker 0's batch of `step`, for a worker that has none of its own. Read in this process."""
        return self.elsewhere(step, 0)

    def elsewhere(self, step: int, virtual_worker: int) -> Any:
        """Return the micro-batch of a virtual worker that is hosted elsewhere. Read in this process."""
        return move_to(self._reader[self._request(step, virtual_worker)][1], self._device)

    def example(self, step: int) -> Any:
        """Return virtual worker 0's batch of `step`. Read in this process."""
        return self.elsewhere(step, 0)

    def _request(self, step: int, virtual_worker: int) -> Request:
        epoch, indices = self._schedule.epoch(step), tuple(self._schedule.indices(step, virtual_worker))
        read = step // self._schedule.updates  # updates from one batch have the same augmentation, too
        seed = derive_seed(self._seed, "data", read, virtual_worker) if self._reader.draws else 0
        return Request(step, virtual_worker, epoch, seed, indices)

    # -- reading ahead

    def _ahead(self, key: tuple[int, int]) -> Any:
        if self._results is None:
            self._results = self._start()
        if key not in self._stock and key not in self._under_way:
            self._cursor = key  # the batch was read before, in a step that is now repeated
        while key not in self._stock:
            try:
                received, batch = next(self._results)
            except StopIteration:  # the iterator had come to its end and stopped its processes
                self._results = self._start()
                continue
            self._under_way.discard(received)
            if received[0] >= self._oldest and received[1] in self._hosted:
                self._stock[received] = batch
        return self._stock.pop(key)

    def _start(self) -> Iterator[tuple[tuple[int, int], Any]]:
        options = self._options
        init = options.worker_init_fn
        loader: DataLoader[Any] = DataLoader(
            self._reader,
            batch_size=None,
            sampler=_Requests(self),
            num_workers=options.num_workers,
            prefetch_factor=options.prefetch_factor,
            collate_fn=_as_it_is,
            pin_memory=self._device.type == "cuda" if options.pin_memory is None else options.pin_memory,
            worker_init_fn=None if init is None else partial(_begin_process, init),
            timeout=options.timeout,
            multiprocessing_context=options.multiprocessing_context,
        )
        return iter(loader)

    def next_request(self) -> Request:
        """Return the next request to read ahead. Raises StopIteration as long as there is none."""
        step, virtual_worker = self._cursor
        while step < self._end:
            for candidate in (each for each in self._hosted if each >= virtual_worker):
                key = (step, candidate)
                wanted = self._schedule.has_samples(step, candidate)
                if wanted and key not in self._stock and key not in self._under_way:
                    self._cursor = (step, candidate + 1)
                    self._under_way.add(key)
                    return self._request(step, candidate)
            step, virtual_worker = step + 1, self._hosted.start
        self._cursor = (step, virtual_worker)
        raise StopIteration


class _Requests(Iterator[Request]):
    """Iterator from which the data loader draws a request after each received batch.

    Unlike a generator, it may continue after a StopIteration.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __next__(self) -> Request:
        return self._loader.next_request()


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin_process(worker_init_fn: Callable[[int], Any], number: int) -> None:
    """Call the script's `worker_init_fn` in a new process for reading, with the script's dataset in
    `get_worker_info()`.
    """
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, _Reader)
    object.__setattr__(info, "dataset", info.dataset.dataset)  # the object refuses ordinary assignments
    worker_init_fn(number)
