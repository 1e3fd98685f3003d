"""From what a script calls its dataset to what a step asks of it (`feed`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ...protocol.errors import UserError
from ..inband import Participant
from ..state.training_state import DataPosition
from .feed import Batching, Sampling
from .lanes import Lanes
from .loading import Loader
from .partitions import Rules
from .reading import ShardReader
from .sampling import SerialSampler
from .shards import Shards, divided
from .streams import Here, Source, Streams


@dataclass(frozen=True)
class Wanted:
    """What a script says about its data, as in `Run.prepare`."""

    virtual_workers: int
    batch_size: int
    seed: int
    shuffle: bool
    drop_last: bool
    collate: Callable[[list[Any]], Any] | None
    device: torch.device
    num_workers: int
    prefetch_factor: int


@dataclass(frozen=True)
class Feed:
    """A dataset as steps see it. position: what of it travels with the job's state."""

    sampling: Sampling
    batching: Batching
    position: DataPosition | None = None
    participants: tuple[Participant, ...] = ()


def feed_of(dataset: Any, wanted: Wanted) -> Feed:
    """Raises UserError where a dataset and what is wanted cannot work together."""
    if isinstance(dataset, IterableDataset):
        dataset = divided(dataset, wanted.virtual_workers)
    if isinstance(dataset, Shards):
        streams = _streams_of(dataset, wanted)
        return Feed(streams, streams, streams, (streams,))
    sampler = SerialSampler.of(
        dataset, wanted.virtual_workers, wanted.batch_size, wanted.seed, wanted.shuffle, wanted.drop_last
    )
    loader = Loader(
        dataset,
        sampler,
        wanted.collate,
        wanted.seed,
        wanted.device,
        wanted.num_workers,
        wanted.prefetch_factor,
    )
    return Feed(sampler, loader)


def _streams_of(shards: Shards, wanted: Wanted) -> Streams:
    if wanted.batch_size < 1:
        raise UserError(f"batch_size is {wanted.batch_size}; it must be at least 1")
    if wanted.drop_last:
        raise UserError(
            "drop_last=True: which steps of an epoch are short is not known beforehand where data is read in sequence. Leave it "
            "out: a short step counts by its samples"
        )
    rules = Rules(
        len(shards.shards),
        wanted.virtual_workers,
        wanted.batch_size,
        wanted.seed,
        wanted.shuffle and not shards.ordered,
    )
    if wanted.num_workers < 0:
        raise UserError(f"num_workers is {wanted.num_workers}: at least 0 is needed")
    if wanted.num_workers:
        source: Source = Lanes(ShardReader(shards, wanted.collate, keeps=True), wanted.num_workers)
    else:
        source = Here(ShardReader(shards, wanted.collate, keeps=wanted.collate is None))
    return Streams(shards, rules, source, wanted.device)
