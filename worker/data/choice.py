"""Construction of a step's feed (`feed`) from the dataset and the arguments of `prepare`.

The names of arguments are PyTorch's. A `DataLoader` may take the place of the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ...protocol.errors import UserError
from ...protocol.model import BatchChange, Scaling
from ..admission import check_guard
from ..inband import Participant
from ..virtual import derive_seed
from .dataloader import Wanted, taken_over
from .drawing import DrawnOrder, OrderWatch, samplers_of, seeded_generators
from .feed import Batching, Sampling
from .lanes import Lanes
from .loading import Loader, LoaderOptions
from .partitions import Rules
from .position import DataPosition
from .reading import ShardReader
from .sampling import BatchSchedule, Order, OwnOrder, Schedule, SerialSampler
from .scaling import Fixed, Growing, Scale, check_room
from .shards import Shards, divided
from .streams import Here, Source, Streams


@dataclass(frozen=True)
class Job:
    """Parameters that do not depend on the data. updates: number of updates made from each batch, one step each."""

    virtual_workers: int
    seed: int
    device: torch.device
    updates: int = 1
    scaling: Scaling | None = None  # the batch may grow
    changed: Callable[[tuple[BatchChange, ...], int], None] = lambda changes, ceiling: None  # as in `scaling.Growing`


@dataclass(frozen=True)
class Feed:
    """A dataset with the objects through which steps read it.

    position: the part that travels with the job's state. seeded: generators of the script that the runtime seeds for
    each epoch. Their states depend on how far a worker has read ahead, and no sample depends on these states.
    """

    sampling: Sampling
    batching: Batching
    position: DataPosition | None = None
    participants: tuple[Participant, ...] = ()
    data: Any = None  # the dataset itself, or its shards
    seeded: tuple[Any, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)  # the script's objects, by arguments: perhaps a DataLoader
    samplers: tuple[Any, ...] = ()  # of the script, which give the order of an epoch
    growing: Growing | None = None  # None: without scaling

    @property
    def scale(self) -> Scale:
        """Number of micro-batches in a step."""
        return self.growing or Fixed(self.sampling.virtual_workers)


def feed_of(data: Any, wanted: Wanted, options: LoaderOptions, job: Job) -> Feed:
    """Return the feed of a dataset. Raises UserError if the dataset and the arguments cannot work together."""
    given_data = data
    if isinstance(data, DataLoader):
        data, wanted, options = taken_over(data, wanted, options)
    sampler = wanted.batch_sampler if wanted.batch_sampler is not None else wanted.sampler
    given = {"dataset": given_data, "sampler": sampler, "collate_fn": options.collate_fn}
    _check(wanted, options)
    if options.num_workers:
        check_guard(options.multiprocessing_context)
    if isinstance(data, IterableDataset):
        data = divided(data, job.virtual_workers)
    if isinstance(data, Shards):
        if job.scaling is not None:
            raise UserError(
                "the batch may grow (scaling), and this dataset can only be read in sequence, in which the workers find each "
                "step's batches out one step before: give a dataset with an index"
            )
        streams = _streams_of(data, wanted, options, job)
        return Feed(streams, streams, streams, (streams,), data, (), given)
    dataset = map_style(data)
    seed = job.seed
    if wanted.generator is not None:
        seed = derive_seed(seed, "generator", wanted.generator.initial_seed())
    schedule = _schedule(dataset, wanted, seed, job)
    loader = Loader(dataset, schedule, job.seed, job.device, options)
    seeded, samplers = tuple(seeded_generators(sampler)), tuple(samplers_of(sampler))
    if job.scaling is None:
        return Feed(schedule, loader, None, (OrderWatch(schedule),), dataset, seeded, given, samplers)
    check_room(job.scaling, schedule)
    growing = Growing(schedule, loader, job.scaling, job.changed)
    watch = OrderWatch(schedule, growing.epoch)
    return Feed(growing, growing, growing, (watch, growing), dataset, seeded, given, samplers, growing)


def _schedule(dataset: Any, wanted: Wanted, seed: int, job: Job) -> Schedule:
    if wanted.batch_sampler is not None:
        order: Order = DrawnOrder(wanted.batch_sampler, seed, "batch_sampler")
        return BatchSchedule(order, job.virtual_workers, wanted.drop_last, job.updates)
    batch_size = _batch_size(wanted)
    if wanted.sampler is not None:
        order = DrawnOrder(wanted.sampler, seed, "sampler")
    else:
        order = OwnOrder(len(dataset), seed, wanted.shuffle is not False)
    return SerialSampler(order, job.virtual_workers, batch_size, wanted.drop_last, job.updates)


def _streams_of(shards: Shards, wanted: Wanted, options: LoaderOptions, job: Job) -> Streams:
    given = {"sampler": wanted.sampler, "batch_sampler": wanted.batch_sampler, "generator": wanted.generator}
    for name, value in given.items():
        if value is not None:
            raise UserError(
                f"{name}= says in which order samples are read, and this dataset can only be read in sequence"
            )
    if wanted.drop_last:
        raise UserError(
            "drop_last=True: which steps of an epoch are short is not known beforehand where data is read in sequence. Leave it "
            "out: a short step counts by its samples"
        )
    rules = Rules(
        len(shards.shards),
        job.virtual_workers,
        _batch_size(wanted),
        job.seed,
        wanted.shuffle is not False and not shards.divided,
        shards.divided,
    )
    collate_fn = options.collate_fn
    if options.num_workers:
        source: Source = Lanes(ShardReader(shards, collate_fn, keeps=True), options)
    else:
        # a collate_fn of the script may put a sample into a batch as it is, and the script may change it there
        own = collate_fn is not None
        again = job.updates > 1
        source = Here(ShardReader(shards, collate_fn, keeps=not own or again, copies=own and again))
    return Streams(shards, rules, source, job.device, job.updates)


def _batch_size(wanted: Wanted) -> int:
    if wanted.batch_size is None:
        raise UserError("prepare() needs batch_size=, the samples of one virtual worker's micro-batch")
    return wanted.batch_size


# ------------------------------------------------------------------------------------------- arguments that cannot work


def map_style(data: Any) -> Any:
    """Return a map-style dataset, with `__len__` and `__getitem__`. Raises UserError for any other object."""
    if isinstance(data, str | Path) or data is None:
        raise UserError(f"the dataset is {data!r}: give an object with `__len__` and `__getitem__`")
    if not hasattr(data, "__getitem__"):
        raise UserError(
            f"the dataset is a {type(data).__name__}: give one with `__len__` and `__getitem__` (map-style), or, where it can "
            "only be read in sequence, elastic.Shards or an IterableDataset"
        )
    if isinstance(data, Mapping):
        names = ", ".join(repr(key) for key in list(data)[:3])
        raise UserError(
            f"the dataset is a mapping with {names}: give one of them, such as dataset[{next(iter(data), '')!r}]"
        )
    if not hasattr(data, "__len__"):
        raise UserError(f"the dataset, a {type(data).__name__}, has no `__len__`: the number of steps follows from it")
    if isinstance(data, tuple) and not hasattr(data, "_fields"):
        others = sorted({type(part).__name__ for part in data if not isinstance(part, torch.Tensor)})
        if others or not data:
            raise UserError(
                f"the dataset is a tuple with {' and '.join(others) or 'nothing'} in it: a tuple is of tensors, one row for each "
                "sample (torch.as_tensor); samples themselves come in a list"
            )
        sizes = [len(part) for part in data]
        if len(set(sizes)) > 1:
            raise UserError(
                f"the dataset's tensors have {' and '.join(map(str, sizes))} rows: each sample is one row of each"
            )
        return TensorDataset(*data)
    return data


def _check(wanted: Wanted, options: LoaderOptions) -> None:
    size = wanted.batch_size
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise UserError(f"batch_size is {size!r}; it must be a whole number")
    if size is not None and size < 1:
        raise UserError(f"batch_size is {size}; it must be at least 1")
    if wanted.sampler is not None and wanted.shuffle:
        raise UserError("sampler= gives the order, so shuffle=True cannot be meant: leave shuffle= out")
    if isinstance(wanted.sampler, DistributedSampler):
        raise UserError(
            "sampler= is a DistributedSampler, which takes a part of the samples for one process: leave it out, the runtime "
            "divides them among the virtual workers itself (shuffle=, drop_last=)"
        )
    if wanted.batch_sampler is not None and (size is not None or wanted.sampler is not None or wanted.shuffle):
        raise UserError("batch_sampler= gives whole batches: leave batch_size=, sampler= and shuffle= out")
    if options.num_workers < 0 or options.prefetch_factor < 1:
        raise UserError(
            f"num_workers is {options.num_workers}, prefetch_factor {options.prefetch_factor}: at least 0 and 1 are needed"
        )
    for name, value in (("collate_fn", options.collate_fn), ("worker_init_fn", options.worker_init_fn)):
        if value is not None and not callable(value):
            raise UserError(f"{name}= takes a function, not {value!r}")
    if wanted.generator is not None and not isinstance(wanted.generator, torch.Generator):
        raise UserError(f"generator= takes a torch.Generator, not {wanted.generator!r}")
