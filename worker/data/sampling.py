"""Data with an index, read serially (Elan V-C): the state of the data is one integer, the step.

An epoch has an order of samples, which is a function of (job seed, epoch). Step s takes the next N * B samples, cut
into N contiguous slices, one for each virtual worker. Whatever happens to the number of workers, every epoch visits
every sample of its order exactly once, and no data state has to be handed over. If a script has batches of its own
(`batch_sampler`), step s takes the next N of these, one for each virtual worker.

The last step of an epoch may be short. Its slices then differ in size, and some may be empty; `weight` compensates, so
that the mean over virtual workers is the mean over the step's samples. The same holds for batches of different sizes.

A job may make several updates from one batch (`updates`): each update is a step, and that many consecutive steps have
the same batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy

from ...protocol.errors import UserError
from ..virtual import derive_seed


class Order(Protocol):
    """The order of samples, or of batches of samples, in each epoch."""

    size: int  # the same in every epoch

    def of(self, epoch: int) -> Sequence[Any]:
        """Return the order of one epoch: the same on every worker, whenever it is requested."""

    def fingerprint(self, epoch: int) -> int:
        """Return 63 bits of a digest of the epoch's order."""


class OwnOrder:
    """The runtime's own order of a dataset: a permutation, or the dataset's order."""

    def __init__(self, size: int, seed: int, shuffle: bool) -> None:
        self.size = size
        self._seed = seed
        self._shuffle = shuffle
        self._drawn: tuple[int, Sequence[Any]] = (-1, ())
        self._printed = (-1, 0)  # the last fingerprint, which every step of an epoch needs

    def of(self, epoch: int) -> Sequence[Any]:
        if not self._shuffle:
            return range(self.size)
        if self._drawn[0] != epoch:
            # Sorting raw 64-bit keys, not Generator.permutation: NumPy keeps only the raw stream the same in all versions.
            keys = numpy.random.PCG64(derive_seed(self._seed, "epoch", epoch)).random_raw(self.size)
            self._drawn = epoch, _Numbers(numpy.argsort(keys, kind="stable"))
        return self._drawn[1]

    def fingerprint(self, epoch: int) -> int:
        if self._printed[0] != epoch:
            self._printed = epoch, derive_seed(self._seed, "order", epoch, self.size, int(self._shuffle))
        return self._printed[1]


class _Numbers(Sequence[int]):
    """An array of which slices are lists of plain numbers."""

    def __init__(self, array: numpy.ndarray[Any, numpy.dtype[numpy.int64]]) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, place: Any) -> Any:
        return self._array[place].tolist()


class Schedule:
    """The samples of each virtual worker in each step of the job (`feed.Sampling`)."""

    next_epoch: int | None = None  # None: the epoch follows from the step

    def __init__(self, order: Order, virtual_workers: int, steps: int, updates: int) -> None:
        """steps: number of steps with different data in an epoch. updates: number of updates made from the batches of
        each.
        """
        self.order = order
        self.virtual_workers = virtual_workers
        self.updates = updates
        self.steps_per_epoch = steps * updates  # number of updates in one epoch
        self._sized: tuple[int, Sequence[int]] = (-1, ())  # of the step that was asked for last

    @property
    def samples_per_step(self) -> int:
        """Samples in a full step; the mean if batches differ in size."""
        raise NotImplementedError

    def total_steps(self, epochs: int) -> int | None:
        """Return the number of steps in a job of `epochs` epochs."""
        return epochs * self.steps_per_epoch

    def epoch(self, step: int) -> int:
        """Return the epoch to which a step belongs."""
        return step // self.steps_per_epoch

    def indices(self, step: int, virtual_worker: int) -> list[Any]:
        """Return the samples of `virtual_worker` in `step`; may be empty in a short last step."""
        return self._indices(*self._reading(step), virtual_worker)

    def has_samples(self, step: int, virtual_worker: int) -> bool:
        """Return whether `virtual_worker` has any sample in `step`."""
        return self.sizes(step)[virtual_worker] > 0

    def weight(self, step: int, virtual_worker: int) -> float:
        """Return the factor of a mean gradient with which the mean over N virtual workers is that over the step's
        samples.
        """
        sizes = self.sizes(step)
        return sizes[virtual_worker] * self.virtual_workers / sum(sizes)

    def sizes(self, step: int) -> Sequence[int]:
        """Return the number of samples of each virtual worker in `step`."""
        known, sizes = self._sized
        if known != step:
            sizes = self._sizes(*self._reading(step))
            self._sized = step, sizes
        return sizes

    def _reading(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step, and the number of its batches within the epoch."""
        epoch, within = divmod(step, self.steps_per_epoch)
        return epoch, within // self.updates

    def _indices(self, epoch: int, step: int, virtual_worker: int) -> list[Any]:
        raise NotImplementedError

    def _sizes(self, epoch: int, step: int) -> Sequence[int]:
        """Return the number of samples of each virtual worker."""
        raise NotImplementedError


class SerialSampler(Schedule):
    """Schedule that cuts an order of samples into slices."""

    def __init__(
        self,
        order: Order,
        virtual_workers: int,
        batch_size: int,
        drop_last: bool = False,
        updates: int = 1,
    ) -> None:
        """batch_size: samples of one virtual worker in a full step. drop_last: leave out a last step that would be
        short.

        Raises UserError if no step would remain.
        """
        full = virtual_workers * batch_size
        size = order.size
        if size < 1:
            raise UserError("the dataset is empty")
        if drop_last and size < full:
            raise UserError(
                f"drop_last leaves nothing of {size} samples: one step needs {virtual_workers} * {batch_size}"
            )
        super().__init__(order, virtual_workers, size // full if drop_last else -(-size // full), updates)
        self.batch_size = batch_size
        self._full = [batch_size] * virtual_workers  # sizes in a full step
        self._samples_per_step = full

    @property
    def samples_per_step(self) -> int:
        return self._samples_per_step

    def _indices(self, epoch: int, step: int, virtual_worker: int) -> list[Any]:
        sizes = self._sizes(epoch, step)
        begin = step * self._samples_per_step + sum(sizes[:virtual_worker])
        return list(self.order.of(epoch)[begin : begin + sizes[virtual_worker]])

    def _sizes(self, epoch: int, step: int) -> Sequence[int]:
        full = self._samples_per_step
        if (step + 1) * full <= self.order.size:
            return self._full
        each, larger = divmod(min(full, self.order.size - step * full), self.virtual_workers)
        return [each + (v < larger) for v in range(self.virtual_workers)]


class BatchSchedule(Schedule):
    """Schedule that hands the script's own batches to the virtual workers in turn."""

    def __init__(self, order: Order, virtual_workers: int, drop_last: bool = False, updates: int = 1) -> None:
        """order: of batches, each a list of samples. drop_last: leave out a last step with fewer batches than virtual
        workers.

        Raises UserError if no step would remain.
        """
        if order.size < 1:
            raise UserError("batch_sampler= has no batch")
        if drop_last and order.size < virtual_workers:
            raise UserError(f"drop_last leaves nothing of {order.size} batches: one step needs {virtual_workers}")
        steps = order.size // virtual_workers if drop_last else -(-order.size // virtual_workers)
        super().__init__(order, virtual_workers, steps, updates)

    @property
    def samples_per_step(self) -> int:
        batches = self.order.of(0)
        return sum(len(batch) for batch in batches) * self.virtual_workers // len(batches)

    def _indices(self, epoch: int, step: int, virtual_worker: int) -> list[Any]:
        position = step * self.virtual_workers + virtual_worker
        batches = self.order.of(epoch)
        return list(batches[position]) if position < len(batches) else []

    def _sizes(self, epoch: int, step: int) -> Sequence[int]:
        batches = self.order.of(epoch)
        begin = step * self.virtual_workers
        sizes = [len(batch) for batch in batches[begin : begin + self.virtual_workers]]
        return [*sizes, *[0] * (self.virtual_workers - len(sizes))]


def fingerprint(order: Sequence[Any]) -> int:
    """Return 63 bits of a digest of an order that a script has drawn."""
    try:
        numbers = numpy.asarray(order)
        text = numbers.astype(numpy.int64).tobytes() if numbers.dtype.kind in "iu" else repr(order).encode()
    except ValueError:  # batches of different sizes
        text = repr(order).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
