"""The order in which N ranks of DistributedDataParallel read their data, for N virtual workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, Sampler


def by_rank(loader: DataLoader[Any], ranks: int) -> DataLoader[Any]:
    """Return `loader`, in the order of all ranks."""
    assert isinstance(loader.sampler, DistributedSampler)
    assert loader.batch_size is not None
    return DataLoader(
        loader.dataset,
        loader.batch_size,
        sampler=RankOrder(loader.dataset, loader.sampler, ranks, loader.batch_size),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
    )


class RankOrder(Sampler[int]):
    """Sampler in the order of N ranks under DDP: virtual worker v reads in step s the samples of rank v."""

    def __init__(self, dataset: Any, sampler: DistributedSampler[Any], ranks: int, batch_size: int) -> None:
        self._samplers: list[DistributedSampler[Any]] = [
            DistributedSampler(dataset, ranks, rank, sampler.shuffle, sampler.seed, sampler.drop_last)
            for rank in range(ranks)
        ]
        self._batch_size = batch_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. The runtime calls this method before it draws the epoch's order."""
        for sampler in self._samplers:
            sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return sum(len(sampler) for sampler in self._samplers)

    def __iter__(self) -> Iterator[int]:
        own, size = [list(sampler) for sampler in self._samplers], self._batch_size
        for begin in range(0, len(own[0]), size):
            for each in own:
                yield from each[begin : begin + size]
