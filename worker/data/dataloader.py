"""Conversion of a script's own `DataLoader` into the arguments of `prepare`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from ...protocol.errors import UserError
from .loading import LoaderOptions


@dataclass(frozen=True)
class Wanted:
    """The samples that a script wants, as in `Run.prepare`. None: not given."""

    batch_size: int | None = None  # samples of one virtual worker in a step
    shuffle: bool | None = None
    sampler: Any = None
    batch_sampler: Any = None
    drop_last: bool = False
    generator: torch.Generator | None = None


_DEFAULTS = {**vars(Wanted()), **vars(LoaderOptions())}


def taken_over(loader: DataLoader[Any], wanted: Wanted, options: LoaderOptions) -> tuple[Any, Wanted, LoaderOptions]:
    """Return the loader's dataset and its options. Raises UserError for options that were also passed to `prepare`."""
    for name, value in {**vars(wanted), **vars(options)}.items():
        default = _DEFAULTS[name]
        if value is not default and not (isinstance(value, int | float) and value == default):
            raise UserError(f"prepare() has a DataLoader and {name}= beside it: say it in the DataLoader")
    own_collate = loader.collate_fn is not torch.utils.data.default_collate
    taken = LoaderOptions(
        collate_fn=loader.collate_fn if own_collate else None,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor or LoaderOptions.prefetch_factor,
        worker_init_fn=loader.worker_init_fn,
        pin_memory=loader.pin_memory or None,
        timeout=loader.timeout,
        multiprocessing_context=loader.multiprocessing_context,
    )
    dataset, batches, generator = loader.dataset, loader.batch_sampler, loader.generator
    if isinstance(dataset, IterableDataset):
        return dataset, Wanted(batch_size=loader.batch_size, drop_last=loader.drop_last), taken
    if batches is None:  # batch_size=None: an item of the dataset is a batch
        taken = replace(taken, collate_fn=partial(_only_one, loader.collate_fn))
        return dataset, replace(_by_sampler(loader.sampler, False), batch_size=1, generator=generator), taken
    if type(batches) is not BatchSampler:
        return dataset, Wanted(batch_sampler=batches, generator=generator), taken
    by_sampler = _by_sampler(batches.sampler, batches.drop_last)
    return dataset, replace(by_sampler, batch_size=batches.batch_size, generator=generator), taken


def _by_sampler(sampler: Any, drop_last: bool) -> Wanted:
    """Return the meaning of a DataLoader's sampler: PyTorch's usual samplers become the runtime's own order."""
    if isinstance(sampler, DistributedSampler):
        warnings.warn(
            "the DataLoader's DistributedSampler is not used: the runtime divides the samples among the virtual workers itself, "
            f"with shuffle={sampler.shuffle}",
            stacklevel=2,
        )
        return Wanted(shuffle=sampler.shuffle, drop_last=drop_last)
    if type(sampler) is SequentialSampler:
        return Wanted(shuffle=False, drop_last=drop_last)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        return Wanted(shuffle=True, drop_last=drop_last)
    return Wanted(sampler=sampler, drop_last=drop_last)


def _only_one(collate_fn: Callable[[Any], Any] | None, items: list[Any]) -> Any:
    (item,) = items
    return item if collate_fn is None else collate_fn(item)
