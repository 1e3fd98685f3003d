"""Data read serially (Elan V-C): the state of the data is one integer, the step.

Epoch e visits the samples in a permutation drawn from (job seed, e). Step s of it takes the next N*B of them, cut into N
contiguous slices, one for each virtual worker. Whatever happens to the number of workers in between, every epoch visits every
sample exactly once, and nothing has to be handed over.

The last step of an epoch may be short. Its slices then differ in size, and some may be empty; `weight` makes up for it, so
that the mean over virtual workers is the mean over the step's samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch.utils.data import TensorDataset, default_collate

from ...protocol.errors import UserError
from ..virtual import derive_seed


class SerialSampler:
    """Which samples a virtual worker trains in a step. Pure, but for a cache of the present epoch's order."""

    def __init__(
        self, size: int, virtual_workers: int, batch_size: int, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        """size: samples in the data set. batch_size: samples of one virtual worker in a full step.
        drop_last: leave out a last step that would be short."""
        if min(size, virtual_workers, batch_size) < 1:
            raise ValueError(
                f"{size} samples, {virtual_workers} virtual workers, batches of {batch_size}: all must be >= 1"
            )
        self.size = size
        self.virtual_workers = virtual_workers
        self.batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._order: tuple[int, numpy.ndarray[Any, numpy.dtype[numpy.int64]]] | None = None

    @classmethod
    def of(
        cls, dataset: Any, virtual_workers: int, batch_size: int, seed: int, shuffle: bool, drop_last: bool
    ) -> SerialSampler:
        """For a map-style data set, or a tuple (list) of tensors. Raises UserError where there would be nothing to train."""
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1")
        rows = isinstance(dataset, tuple | list) and all(isinstance(part, torch.Tensor) for part in dataset)
        size = len(dataset[0]) if rows else len(dataset)
        if size < 1:
            raise UserError("the dataset is empty")
        if drop_last and size < virtual_workers * batch_size:
            full = f"{virtual_workers} * {batch_size}"
            raise UserError(f"drop_last leaves nothing of {size} samples: one step needs {full}")
        return cls(size, virtual_workers, batch_size, seed, shuffle, drop_last)

    @property
    def steps_per_epoch(self) -> int:
        full = self.virtual_workers * self.batch_size
        return self.size // full if self._drop_last else -(-self.size // full)

    @property
    def next_epoch(self) -> int | None:
        """Of the step to come, where that does not follow from its number: never here."""
        return None

    def total_steps(self, epochs: int) -> int | None:
        """Of a job of so many epochs."""
        return epochs * self.steps_per_epoch

    def within(self, step: int) -> int:
        """A step of the job, counted within its epoch."""
        return step % self.steps_per_epoch

    def indices(self, epoch: int, step: int, virtual_worker: int) -> list[int]:
        """Samples of `virtual_worker` in `step` (counted within the epoch); may be empty in a short last step."""
        begin, end = self._slice(step, virtual_worker)
        found: list[int] = self._order_of(epoch)[begin:end].tolist()
        return found

    def has_samples(self, step: int, virtual_worker: int) -> bool:
        """Whether `virtual_worker` has any sample in `step` (counted within the epoch)."""
        begin, end = self._slice(step, virtual_worker)
        return end > begin

    def weight(self, step: int, virtual_worker: int) -> float:
        """What to multiply a mean gradient by, so that the mean over all N virtual workers is that over the step's samples."""
        begin, end = self._slice(step, virtual_worker)
        return (end - begin) * self.virtual_workers / self._step_size(step)

    def _step_size(self, step: int) -> int:
        if not 0 <= step < self.steps_per_epoch:
            raise ValueError(f"step {step} is not one of the epoch's {self.steps_per_epoch}")
        full = self.virtual_workers * self.batch_size
        return min(full, self.size - step * full)

    def _slice(self, step: int, virtual_worker: int) -> tuple[int, int]:
        each, larger = divmod(self._step_size(step), self.virtual_workers)
        begin = step * self.virtual_workers * self.batch_size + each * virtual_worker + min(virtual_worker, larger)
        return begin, begin + each + (virtual_worker < larger)

    def _order_of(self, epoch: int) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]]:
        if self._order is None or self._order[0] != epoch:
            order = numpy.arange(self.size, dtype=numpy.int64)
            if self._shuffle:
                # Sorting raw 64-bit keys, not Generator.permutation: NumPy keeps only the raw stream the same in all versions.
                keys = numpy.random.PCG64(derive_seed(self._seed, "epoch", epoch)).random_raw(self.size)
                order = numpy.argsort(keys, kind="stable")
            self._order = epoch, order
        return self._order[1]


def fetch(dataset: Any, indices: Sequence[int], collate: Callable[[list[Any]], Any] | None = None) -> Any:
    """One batch: of a map-style data set, or of a tuple (list) of tensors that have one row for each sample."""
    if collate is None and (found := columns(dataset)) is not None:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return tuple(column[rows.to(column.device)] for column in found)
    if hasattr(dataset, "__getitems__"):
        items = list(dataset.__getitems__(list(indices)))
    else:
        items = [dataset[index] for index in indices]
    return (collate or default_collate)(items)


def columns(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """The tensors of a data set that consists of them, one row for each sample; None if it is something else."""
    if isinstance(dataset, TensorDataset):
        return dataset.tensors
    if isinstance(dataset, tuple | list) and dataset and all(isinstance(column, torch.Tensor) for column in dataset):
        return tuple(dataset)
    return None


def move_to(batch: Any, device: torch.device) -> Any:
    """`batch` with all its tensors on `device`; mappings, lists and (named) tuples are followed, all else is kept."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: move_to(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_to(value, device) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(move_to(value, device) for value in batch)
    return batch
