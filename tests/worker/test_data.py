"""Serial data: every sample once an epoch, whoever reads it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from elasticd.worker.data.sampling import SerialSampler, fetch, move_to

SAMPLERS = st.builds(
    SerialSampler,
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
        for index in sampler.indices(epoch, step, v)
    ]
    assert sorted(seen) == list(range(sampler.size))


@given(sampler=SAMPLERS)
def test_only_the_last_step_may_be_short_and_weights_make_up_for_it(sampler: SerialSampler) -> None:
    n = sampler.virtual_workers
    for step in range(sampler.steps_per_epoch):
        sizes = [len(sampler.indices(0, step, v)) for v in range(n)]
        weights = [sampler.weight(step, v) for v in range(n)]
        if step < sampler.steps_per_epoch - 1:
            assert sizes == [sampler.batch_size] * n
            assert weights == [1.0] * n
        assert max(sizes) - min(sizes) <= 1
        # mean of weighted means = mean over the samples, here of the value 1 in each sample of virtual worker 0
        assert sum(weights) / n == pytest.approx(1.0)
        assert weights[0] / n == pytest.approx(sizes[0] / sum(sizes))


def test_epochs_differ_in_order_and_an_order_never_changes() -> None:
    sampler = SerialSampler(10, 1, 10, seed=7)
    assert sampler.indices(0, 0, 0) == [5, 4, 3, 8, 0, 7, 1, 2, 9, 6]
    assert sampler.indices(1, 0, 0) != sampler.indices(0, 0, 0)
    assert SerialSampler(10, 2, 5, seed=7).indices(0, 0, 1) == sampler.indices(0, 0, 0)[5:]


def test_without_shuffling_samples_come_in_their_own_order() -> None:
    assert SerialSampler(6, 2, 2, seed=0, shuffle=False).indices(4, 1, 1) == [5]


def test_a_step_beyond_the_epoch_is_an_error() -> None:
    with pytest.raises(ValueError, match="not one of the epoch's 1"):
        SerialSampler(4, 2, 2, seed=0).indices(0, 1, 0)


def test_tensor_data_sets_and_tuples_of_tensors_are_indexed_at_once() -> None:
    x, y = torch.arange(10.0).view(5, 2), torch.arange(5)
    for dataset in (TensorDataset(x, y), (x, y)):
        got_x, got_y = fetch(dataset, [3, 1])
        assert torch.equal(got_x, x[[3, 1]])
        assert torch.equal(got_y, y[[3, 1]])


class Squares:
    """A map-style data set."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index * index


class ManySquares(Squares):
    """One that fetches many samples at a time."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        return [(torch.tensor([-1.0]), index * index) for index in indices]


def test_items_are_collated_as_a_data_loader_does() -> None:
    x, y = fetch(Squares(), [2, 3])
    assert x.tolist() == [[2.0], [3.0]]
    assert y.tolist() == [4, 9]
    assert fetch(ManySquares(), [2])[0].tolist() == [[-1.0]]
    assert fetch(Squares(), [2, 3], collate=len) == 2


class Pair(NamedTuple):
    """A batch with names."""

    x: torch.Tensor
    note: str


def test_move_to_follows_containers_and_keeps_the_rest() -> None:
    device = torch.device("meta")
    moved = move_to({"a": [torch.zeros(1)], "b": (Pair(torch.zeros(2), "n"), None)}, device)
    assert moved["a"][0].device == device
    assert moved["b"][0].x.device == device
    assert moved["b"][0].note == "n"
    assert moved["b"][1] is None
