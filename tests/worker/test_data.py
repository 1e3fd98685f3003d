"""Map-style data: every sample once per epoch, on whichever worker."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elasticd.worker.data.fetching import fetch
from elasticd.worker.data.sampling import OwnOrder, SerialSampler


def serial(
    size: int, virtual_workers: int, batch_size: int, seed: int, shuffle: bool = True, updates: int = 1
) -> SerialSampler:
    return SerialSampler(OwnOrder(size, seed, shuffle), virtual_workers, batch_size, updates=updates)


SAMPLERS = st.builds(
    serial,
    size=st.integers(1, 300),
    virtual_workers=st.integers(1, 16),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    shuffle=st.booleans(),
)


@given(sampler=SAMPLERS, epoch=st.integers(0, 50))
def test_an_epoch_visits_every_sample_exactly_once(sampler: SerialSampler, epoch: int) -> None:
    seen = [
        index
        for step in range(sampler.steps_per_epoch)
        for v in range(sampler.virtual_workers)
        for index in sampler.indices(epoch * sampler.steps_per_epoch + step, v)
    ]
    assert sorted(seen) == list(range(sampler.order.size))


@given(sampler=SAMPLERS)
def test_only_the_last_step_may_be_short_and_weights_make_up_for_it(sampler: SerialSampler) -> None:
    n = sampler.virtual_workers
    for step in range(sampler.steps_per_epoch):
        sizes = [len(sampler.indices(step, v)) for v in range(n)]
        weights = [sampler.weight(step, v) for v in range(n)]
        if step < sampler.steps_per_epoch - 1:
            assert sizes == [sampler.batch_size] * n
            assert weights == [1.0] * n
        assert max(sizes) - min(sizes) <= 1
        # mean of weighted means = mean over the samples, here of the value 1 in each sample of virtual worker 0
        assert sum(weights) / n == pytest.approx(1.0)
        assert weights[0] / n == pytest.approx(sizes[0] / sum(sizes))


def test_epochs_differ_in_order_and_an_order_never_changes() -> None:
    sampler = serial(10, 1, 10, seed=7)
    assert sampler.indices(0, 0) == [5, 4, 3, 8, 0, 7, 1, 2, 9, 6]
    assert sampler.indices(1, 0) != sampler.indices(0, 0)
    assert serial(10, 2, 5, seed=7).indices(0, 1) == sampler.indices(0, 0)[5:]


def test_without_shuffling_samples_come_in_their_own_order() -> None:
    assert serial(6, 2, 2, seed=0, shuffle=False).indices(9, 1) == [5]


class Squares:
    """A map-style data set."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index * index


class ManySquares(Squares):
    """With a method that reads many samples at a time."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        return [(torch.tensor([-1.0]), index * index) for index in indices]


def test_items_are_collated_as_a_data_loader_does() -> None:
    x, y = fetch(Squares(), [2, 3])
    assert x.tolist() == [[2.0], [3.0]]
    assert y.tolist() == [4, 9]
    assert fetch(ManySquares(), [2])[0].tolist() == [[-1.0]]
    assert fetch(Squares(), [2, 3], collate_fn=len) == 2


def test_several_updates_have_one_batch_and_a_step_each() -> None:
    once, twice = serial(50, 2, 4, seed=3), serial(50, 2, 4, seed=3, updates=2)
    assert twice.steps_per_epoch == 2 * once.steps_per_epoch
    for step in range(2 * twice.steps_per_epoch):
        assert twice.epoch(step) == once.epoch(step // 2)
        assert twice.indices(step, 1) == once.indices(step // 2, 1)
        assert twice.weight(step, 1) == once.weight(step // 2, 1)
