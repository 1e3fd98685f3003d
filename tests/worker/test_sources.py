"""Data arguments of `prepare`: PyTorch's names, its samplers, its DataLoader."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from elasticd.protocol.errors import UserError
from elasticd.worker.data.choice import Job, feed_of
from elasticd.worker.data.dataloader import Wanted
from elasticd.worker.data.drawing import OrderWatch
from elasticd.worker.data.loading import Loader, LoaderOptions
from elasticd.worker.data.sampling import Schedule
from elasticd.worker.inband import Part

CPU = torch.device("cpu")
NUMBERS = TensorDataset(torch.arange(23.0))


def opened(
    data: Any = NUMBERS, options: LoaderOptions | None = None, n: int = 2, **wanted: Any
) -> tuple[Schedule, Loader]:
    feed = feed_of(data, Wanted(**wanted), options or LoaderOptions(), Job(n, 7, CPU))
    assert isinstance(feed.sampling, Schedule)
    assert isinstance(feed.batching, Loader)
    return feed.sampling, feed.batching


def epoch_of(schedule: Schedule, epoch: int = 0) -> list[list[Any]]:
    """The samples of each virtual worker, step by step."""
    begin, steps = epoch * schedule.steps_per_epoch, range(schedule.steps_per_epoch)
    return [schedule.indices(begin + step, v) for step in steps for v in range(schedule.virtual_workers)]


def flat(batches: list[list[Any]]) -> list[Any]:
    return [sample for batch in batches for sample in batch]


class Halves(Sampler[int]):
    """Shuffles with its own generators, and knows its epoch."""

    def __init__(self) -> None:
        self.torch = torch.Generator()
        self.numpy = numpy.random.default_rng()
        self.old = numpy.random.RandomState()
        self.python = random.Random()
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(12, generator=self.torch).tolist()
        self.numpy.shuffle(order)
        self.old.shuffle(order)
        self.python.shuffle(order)
        random.shuffle(order)
        return iter([self.epoch, *order[1:]])


def test_a_sampler_is_drawn_from_once_an_epoch_and_alike_on_every_worker() -> None:
    here, there = opened(sampler=Halves(), batch_size=3)[0], opened(sampler=Halves(), batch_size=3)[0]
    torch.manual_seed(1)
    here.indices(0, 0)  # `there` joins later
    first, second = epoch_of(here, 1), epoch_of(here, 2)
    assert epoch_of(there, 2) == second
    assert epoch_of(there, 1) == first
    assert flat(first)[0] == 1
    assert flat(second)[0] == 2
    assert flat(first)[1:] != flat(second)[1:]
    assert [len(batch) for batch in first] == [3, 3, 3, 3]


def test_drawing_an_order_leaves_the_generators_alone() -> None:
    schedule, _ = opened(sampler=WeightedRandomSampler([1.0] * 23, 40), batch_size=4)
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    expected = torch.rand(1).item(), random.random(), numpy.random.rand()
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    schedule.indices(0, 0)
    assert (torch.rand(1).item(), random.random(), numpy.random.rand()) == expected


def test_a_weighted_sampler_draws_what_its_weights_say() -> None:
    schedule, _ = opened(sampler=WeightedRandomSampler([0.0] * 20 + [1.0] * 3, 40), batch_size=4)
    assert schedule.steps_per_epoch == 5
    assert set(flat(epoch_of(schedule))) == {20, 21, 22}


class Buckets(Sampler[list[int]]):
    """Batches of samples of similar length, with varying sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[0, 1, 2, 3], [4, 5], [6], [7, 8, 9], [10, 11]]
        for place in torch.randperm(5).tolist():
            yield batches[place]

    def __len__(self) -> int:
        return 5


def test_batches_of_the_scripts_own_go_to_the_virtual_workers_in_turn_weighted_by_their_samples() -> None:
    schedule, loader = opened(batch_sampler=Buckets())
    batches = epoch_of(schedule)
    assert schedule.steps_per_epoch == 3
    assert sorted(flat(batches)) == list(range(12))
    assert batches[5] == [], "five batches: the second virtual worker has none in the last step"
    assert not schedule.has_samples(2, 1)
    for step in range(3):
        sizes = [len(batch) for batch in batches[2 * step : 2 * step + 2]]
        weights = [schedule.weight(step, v) for v in range(2)]
        assert weights == pytest.approx([2 * size / sum(sizes) for size in sizes])
    assert loader.batch(0, 1)[0].tolist() == [float(index) for index in batches[1]]
    assert epoch_of(opened(batch_sampler=Buckets(), drop_last=True)[0]) == batches[:4]


# ---------------------------------------------------------------------------------------------------- a DataLoader


@pytest.mark.parametrize(
    ("loader", "wanted"),
    [
        (DataLoader(NUMBERS, 3, shuffle=True), {"batch_size": 3}),
        (DataLoader(NUMBERS, 3), {"batch_size": 3, "shuffle": False}),
        (DataLoader(NUMBERS, 3, drop_last=True), {"batch_size": 3, "shuffle": False, "drop_last": True}),
        (DataLoader(NUMBERS, 3, sampler=Halves()), {"batch_size": 3, "sampler": Halves()}),
        (DataLoader(NUMBERS, batch_sampler=Buckets()), {"batch_sampler": Buckets()}),
        (
            DataLoader(NUMBERS, batch_sampler=BatchSampler(RandomSampler(NUMBERS), 4, True)),
            {"batch_size": 4, "drop_last": True},
        ),
        (DataLoader(NUMBERS, batch_size=None), {"batch_size": 1, "shuffle": False}),
        (
            DataLoader(NUMBERS, 3, shuffle=True, generator=torch.Generator().manual_seed(9)),
            {"batch_size": 3, "generator": torch.Generator().manual_seed(9)},
        ),
    ],
    ids=[
        "shuffle",
        "in order",
        "drop_last",
        "sampler",
        "batch_sampler",
        "BatchSampler",
        "batch_size=None",
        "generator",
    ],
)
def test_a_data_loader_means_what_its_arguments_mean(loader: DataLoader[Any], wanted: dict[str, Any]) -> None:
    assert epoch_of(opened(loader)[0], 3) == epoch_of(opened(**wanted)[0], 3)


def test_a_generator_gives_another_order() -> None:
    by_nine = opened(batch_size=3, generator=torch.Generator().manual_seed(9))[0]
    assert epoch_of(by_nine) != epoch_of(opened(batch_size=3)[0])
    assert sorted(flat(epoch_of(by_nine))) == list(range(23))


def test_a_random_sampler_with_replacement_is_kept() -> None:
    schedule = opened(DataLoader(NUMBERS, 4, sampler=RandomSampler(NUMBERS, replacement=True, num_samples=400)))[0]
    assert len(flat(epoch_of(schedule))) == 400


def test_a_distributed_sampler_is_replaced_and_that_is_said() -> None:
    sampler = DistributedSampler(NUMBERS, num_replicas=2, rank=1, shuffle=False)
    with pytest.warns(
        UserWarning, match="DistributedSampler is not used: the runtime divides the samples .* shuffle=False"
    ):
        schedule, _ = opened(DataLoader(NUMBERS, 3, sampler=sampler))
    assert epoch_of(schedule) == epoch_of(opened(batch_size=3, shuffle=False)[0])
    with pytest.raises(UserError, match="sampler= is a DistributedSampler, which takes a part"):
        opened(batch_size=3, sampler=sampler)


def test_a_data_loaders_items_are_batches_where_it_does_not_batch() -> None:
    batches = TensorDataset(torch.arange(6.0).view(3, 2))
    _, loader = opened(DataLoader(batches, batch_size=None, collate_fn=lambda item: item[0] + 1))
    assert loader.batch(0, 1).tolist() == [3.0, 4.0]


def sums(samples: list[tuple[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([value for (value,) in samples]).sum()


def offset(number: int) -> None:
    """Runs in a data loader process: the script's own dataset is where PyTorch expects it."""
    info = get_worker_info()
    assert info is not None
    info.dataset.tensors = (info.dataset.tensors[0] + 100 * (info.id == number),)


@pytest.mark.parametrize("as_loader", [False, True])
def test_worker_init_fn_and_collate_fn_act_where_batches_are_read(as_loader: bool) -> None:
    if as_loader:
        _, loader = opened(DataLoader(NUMBERS, 2, collate_fn=sums, num_workers=1, worker_init_fn=offset))
    else:
        options = LoaderOptions(collate_fn=sums, num_workers=1, worker_init_fn=offset)
        _, loader = opened(options=options, batch_size=2, shuffle=False)
    loader.assign(0, range(2), end=1)
    assert [loader.batch(0, v).item() for v in range(2)] == [201.0, 205.0]


# ---------------------------------------------------------------------------------------------- ambiguous arguments


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Endless:
    def __getitem__(self, index: int) -> int:
        return index


class Growing(Halves):
    """Yields more samples in each epoch."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(12 + self.epoch))


@pytest.mark.parametrize(
    ("data", "wanted", "said"),
    [
        (
            Stream(),
            {"batch_size": 2, "sampler": Halves()},
            "sampler= says in which order .* can only be read in sequence",
        ),
        (DataLoader(Stream(), 2, drop_last=True), {}, "drop_last=True: which steps of an epoch are short"),
        (iter([1]), {"batch_size": 2}, "the dataset is a list_iterator: .* elastic.Shards or an IterableDataset"),
        ("data/train", {"batch_size": 2}, "the dataset is 'data/train': give an object with `__len__`"),
        (Path("train"), {"batch_size": 2}, "give an object with `__len__`"),
        (None, {"batch_size": 2}, "the dataset is None"),
        (
            {"train": [1], "test": [2]},
            {"batch_size": 2},
            r"the dataset is a mapping with 'train', 'test': .* dataset\['train'\]",
        ),
        (Endless(), {"batch_size": 2}, "has no `__len__`"),
        (
            (numpy.zeros(3), torch.zeros(3)),
            {"batch_size": 2},
            "the dataset is a tuple with ndarray in it: a tuple is of tensors",
        ),
        ((torch.zeros(3), torch.zeros(4)), {"batch_size": 2}, "the dataset's tensors have 3 and 4 rows"),
        ([], {"batch_size": 2}, "the dataset is empty"),
        (NUMBERS, {}, "prepare\\(\\) needs batch_size="),
        (NUMBERS, {"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        (NUMBERS, {"batch_size": "32"}, "batch_size is '32'; it must be a whole number"),
        (
            NUMBERS,
            {"batch_size": 12, "drop_last": True},
            r"drop_last leaves nothing of 23 samples: one step needs 2 \* 12",
        ),
        (
            DataLoader(NUMBERS, 2),
            {"batch_size": 2},
            r"a DataLoader and batch_size= beside it: say it in the DataLoader",
        ),
        (NUMBERS, {"batch_size": 2, "sampler": SequentialSampler(NUMBERS), "shuffle": True}, "leave shuffle= out"),
        (
            NUMBERS,
            {"batch_size": 2, "batch_sampler": Buckets()},
            "batch_sampler= gives whole batches: leave batch_size=",
        ),
        (NUMBERS, {"batch_size": 2, "sampler": iter([1, 2])}, "sampler= is an iterator, which can be read once"),
        (
            NUMBERS,
            {"batch_size": 2, "sampler": "weighted"},
            "sampler= takes an object that is iterated once for each epoch",
        ),
        (NUMBERS, {"batch_size": 2, "sampler": Endless()}, "sampler= takes an object that is iterated"),
        (NUMBERS, {"batch_size": 2, "generator": 3}, "generator= takes a torch.Generator, not 3"),
    ],
)
def test_what_cannot_be_read_gets_the_sentence_that_says_what_can(data: Any, wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        opened(data, **wanted)


def test_functions_that_are_none_are_refused() -> None:
    with pytest.raises(UserError, match="collate_fn= takes a function, not 'pad'"):
        opened(options=LoaderOptions(collate_fn="pad"), batch_size=2)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="num_workers is -1"):
        opened(options=LoaderOptions(num_workers=-1), batch_size=2)


def test_a_sampler_whose_epochs_differ_in_length_is_refused() -> None:
    schedule, _ = opened(sampler=Growing(), batch_size=2)
    with pytest.raises(UserError, match="sampler= has given 14 in epoch 2, and its length is 12"):
        schedule.indices(2 * schedule.steps_per_epoch, 0)


# -------------------------------------------------------------------------------- workers that read different data


class Remembers(Halves):
    """Its order depends on the number of earlier readings."""

    turns = 0

    def __iter__(self) -> Iterator[int]:
        self.turns += 1
        return iter([self.turns, *range(11)])


def compared(*schedules: Schedule, step: int = 9) -> None:
    """Exchange the messages of the workers with these schedules, as `inband` does."""
    part = Part(step, (0,))
    watches = [OrderWatch(schedule) for schedule in schedules]
    greatest = [max(numbers) for numbers in zip(*(watch.numbers(part) for watch in watches), strict=True)]
    assert not any(watch.wants(part) for watch in watches)
    if watches[0].wants_after(part, greatest):
        payloads = [watch.payload(part) for watch in watches]
        for watch in watches:
            watch.read(part, payloads)


def test_workers_whose_orders_differ_do_not_train_on() -> None:
    same = [opened(sampler=Halves(), batch_size=3)[0] for _ in range(2)]
    compared(*same)
    one, other = (opened(sampler=Remembers(), batch_size=3)[0] for _ in range(2))
    one.indices(0, 0)
    with pytest.raises(UserError, match=r"do not read the same data in epoch 4 \(step 9\): their samplers have given"):
        compared(one, other)
    with pytest.raises(UserError, match="their datasets have 22 and 23 samples: give all servers the same files"):
        compared(opened(batch_size=2)[0], opened(TensorDataset(torch.zeros(22)), batch_size=2)[0])
