"""Assembly of a batch, and its transfer to the device with its types kept."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import TensorDataset

from elasticd.worker.data.choice import Job, feed_of
from elasticd.worker.data.dataloader import Wanted
from elasticd.worker.data.fetching import fetch, move_to
from elasticd.worker.data.loading import LoaderOptions

META = torch.device("meta")


def first_batch(dataset: Any) -> Any:
    """The first two samples, as a loader reads them."""
    wanted, job = Wanted(batch_size=2, shuffle=False), Job(1, 0, torch.device("cpu"))
    return feed_of(dataset, wanted, LoaderOptions(), job).batching.batch(0, 0)


def test_tensor_data_sets_and_tuples_of_tensors_are_indexed_at_once() -> None:
    x, y = torch.arange(10.0).view(5, 2), torch.arange(5)
    got_x, got_y = fetch(TensorDataset(x, y), [3, 1])
    assert torch.equal(got_x, x[[3, 1]])
    assert torch.equal(got_y, y[[3, 1]])
    got_x, got_y = first_batch((x, y))
    assert torch.equal(got_x, x[:2])
    assert torch.equal(got_y, y[:2])


@pytest.mark.parametrize("column", [torch.arange(5), torch.arange(10.0).view(5, 2), torch.arange(10.0).view(2, 5).t()])
def test_indices_count_from_the_end_where_they_are_negative(column: torch.Tensor) -> None:
    (got,) = fetch(TensorDataset(column), [-1, 0, -5])
    assert torch.equal(got, column[[4, 0, 0]])
    with pytest.raises(IndexError):
        fetch(TensorDataset(column), [0, 5])
    with pytest.raises(IndexError):
        fetch(TensorDataset(column), [-6])


class Negative(TensorDataset):
    """With its own `__getitem__`."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(-tensor[index] for tensor in self.tensors)


class NegativeAtOnce(TensorDataset):
    """With its own `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [-self.tensors[0][index] for index in indices]


def test_a_data_sets_own_getitem_is_always_used() -> None:
    x = torch.arange(1.0, 5.0)
    assert first_batch(Negative(x))[0].tolist() == [-1.0, -2.0]
    assert first_batch(NegativeAtOnce(x)).tolist() == [-1.0, -2.0]


def test_a_list_of_tensors_is_a_list_of_samples() -> None:
    samples = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0]), torch.tensor([7.0, 8.0, 9.0])]
    assert first_batch(samples).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


class Pair(NamedTuple):
    """A batch with named fields."""

    x: torch.Tensor
    note: str


class Encoding(UserDict[str, Any]):
    """Like Hugging Face's `BatchEncoding`: a mapping with a method `to`."""

    def to(self, device: torch.device) -> Encoding:
        return Encoding({key: value.to(device) for key, value in self.items()})


@dataclass(frozen=True)
class Graph:
    """A batch of a type of the script's."""

    nodes: torch.Tensor
    name: str


class Graphs(list[Graph]):
    """Several graphs, with an attribute."""

    source = "none"


def test_all_tensors_of_a_batch_are_moved_and_its_types_are_kept() -> None:
    graphs = Graphs([Graph(torch.zeros(1), "g")])
    graphs.source = "file"
    named = defaultdict(list, {"a": torch.zeros(1)})
    packed = pack_sequence([torch.zeros(2), torch.zeros(1)])
    batch = {
        "list": [torch.zeros(1)],
        "pair": (Pair(torch.zeros(2), "n"), None),
        "encoding": Encoding({"ids": torch.zeros(1)}),
        "graphs": graphs,
        "named": named,
        "ordered": OrderedDict(z=torch.zeros(1), a=torch.zeros(1)),
        "packed": packed,
    }
    moved = move_to(batch, META)
    assert moved["list"][0].device == META
    assert (moved["pair"][0].x.device, moved["pair"][0].note, moved["pair"][1]) == (META, "n", None)
    assert (type(moved["encoding"]), moved["encoding"]["ids"].device) == (Encoding, META)
    assert (type(moved["graphs"]), moved["graphs"].source, moved["graphs"][0].name) == (Graphs, "file", "g")
    assert moved["graphs"][0].nodes.device == META
    assert (type(moved["named"]), moved["named"]["a"].device, moved["named"]["new"]) == (defaultdict, META, [])
    assert (type(moved["ordered"]), list(moved["ordered"])) == (OrderedDict, ["z", "a"])
    assert isinstance(moved["packed"], PackedSequence)
    assert moved["packed"].data.device == META
    assert named["a"].device == graphs[0].nodes.device == packed.data.device == torch.device("cpu"), (
        "the batch is its owner's"
    )
