"""Comparison of two workers' data: differences are named, and the comparison changes nothing of a dataset."""

from __future__ import annotations

import dataclasses
import os
import queue
import random
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, random_split

from elasticd.protocol.errors import UserError
from elasticd.runtime.clock import SteadyClock
from elasticd.worker.data.drawing import OrderWatch
from elasticd.worker.data.likeness import LIMIT_S, Likeness, Unlike, chosen, difference, digest, fingerprint
from elasticd.worker.data.sampling import OwnOrder, SerialSampler
from elasticd.worker.data.shards import Shards, divided
from elasticd.worker.inband import Part
from elasticd.worker.plain import pack, unpack

NOW = SteadyClock().now
ME, THEM = "s-1.2 on 10.0.0.2", "s-1.0 on 10.0.0.1"


def told(dataset: Any) -> dict[str, Any]:
    """A fingerprint as received with a state."""
    found: dict[str, Any] = unpack(pack(fingerprint(dataset, NOW), "a fingerprint"))
    return found


def compared(own: Any, theirs: Any) -> str | None:
    return difference(told(own), told(theirs), ME, THEM)


class Files(Dataset[Any]):
    """As in many scripts: a list of names, and an augmentation that draws."""

    def __init__(self, files: list[str]) -> None:
        self.files = files
        self.reads = 0
        self.seen: list[int] = []
        self.handle: object | None = None
        self.cache: dict[int, Any] = {}
        self.order = deque([0], maxlen=4)
        self.generator = numpy.random.default_rng(3)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        self.seen.append(index)
        self.order.append(index)
        self.handle = self.handle or object()
        image = torch.full((2, 2), float(len(Path(self.files[index]).name)))
        self.cache[index] = image
        return {"image": image + torch.rand(1) + random.random() + numpy.random.rand(), "name": self.files[index]}


class Noisy(Files):
    """Also draws from its own generator."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)["name"] if index % 2 else float(self.generator.random())


NAMES = [f"image-{number:03d}.png" for number in range(100)]


def test_equal_data_are_equal_with_augmentation_and_in_other_places() -> None:
    assert compared(Files(NAMES), Files(NAMES)) is None
    assert compared(Files([f"/fast/{name}" for name in NAMES]), Files([f"/nfs/data/{name}" for name in NAMES])) is None
    random.seed(1)  # earlier draws of the script do not matter
    first = told(Files(NAMES))
    random.seed(2)
    assert first == told(Files(NAMES))
    assert len(first["samples"]) == 3


def test_a_list_in_another_order_is_named() -> None:
    found = compared(Files(NAMES[::-1]), Files(NAMES))
    assert found is not None
    assert f"of the dataset differs between {THEM} and {ME}. Its 'files': entry 0 is 'image-000.png' there" in found
    assert found.endswith("the same names in another order: sort them")


def test_samples_with_other_contents_and_the_same_names_differ() -> None:
    class Other(Files):
        def __getitem__(self, index: int) -> Any:
            return {**super().__getitem__(index), "image": torch.ones(2, 2)}

    found = compared(Other(NAMES), Files(NAMES))
    assert found is not None
    assert found.endswith("the files differ, or the list of files has another order: sort it")


def test_datasets_of_different_lengths_are_told_apart() -> None:
    found = compared(Files(NAMES[:-1]), Files(NAMES))
    assert found is not None
    assert found.startswith(f"the dataset has 100 samples for {THEM} and 99 for {ME}: give all servers the same files")


def test_labels_numbered_in_another_order_are_found_in_tensors() -> None:
    x, y = torch.randn(64, 4), torch.arange(64)
    assert compared(TensorDataset(x, y), TensorDataset(x.clone(), y.clone())) is None
    found = compared(TensorDataset(x, y.flip(0)), TensorDataset(x, y))
    assert found is not None
    assert found.startswith("tensor 1 of the dataset, in row 0, differs between")
    late = y.clone()
    late[63] = 0
    assert compared(TensorDataset(x, late), TensorDataset(x, y)) is not None


def test_a_random_split_without_a_seed_differs() -> None:
    data = TensorDataset(torch.arange(1000.0))
    one, other = (random_split(data, [800, 200], torch.Generator().manual_seed(seed))[0] for seed in (1, 2))
    assert compared(one, Subset(data, list(one.indices))) is None
    assert compared(other, one) is not None


def test_looking_changes_nothing_of_the_dataset_nor_of_the_generators() -> None:
    dataset = Noisy(NAMES)
    inner = Subset(dataset, list(range(50)))
    drawn = dataset.generator.bit_generator.state
    generators = random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    told(inner)
    assert (dataset.reads, dataset.seen, dataset.handle, dataset.cache) == (0, [], None, {})
    assert list(dataset.order) == [0]
    assert dataset.generator.bit_generator.state == drawn
    assert random.getstate() == generators[0]
    assert torch.equal(torch.get_rng_state(), generators[1])
    assert numpy.random.get_state()[1].tolist() == generators[2]  # type: ignore[index, union-attr]


def test_a_queue_that_a_thread_fills_is_left_alone() -> None:
    class Queued(Files):
        def __init__(self, files: list[str]) -> None:
            super().__init__(files)
            self.queue: queue.Queue[int] = queue.Queue()
            for number in range(10):
                self.queue.put(number)

        def __getitem__(self, index: int) -> Any:
            self.queue.put(100)
            return self.queue.get()

    dataset = Queued(NAMES)
    told(dataset)
    assert dataset.queue.qsize() == 10
    assert dataset.queue.get() == 6  # three samples, read twice


def test_a_sample_that_differs_from_itself_is_no_evidence() -> None:
    class Clock(Files):
        def __getitem__(self, index: int) -> Any:
            return time.perf_counter_ns(), os.urandom(4)

    assert told(Clock(NAMES))["samples"] == []
    noisy = told(Noisy(NAMES))["samples"]
    assert [index % 2 for index, _ in noisy] == [1] * len(noisy)
    assert compared(Clock(NAMES), Files(NAMES)) is None


def test_a_dataset_that_cannot_be_read_yet_is_no_evidence() -> None:
    class Later(Files):
        def __getitem__(self, index: int) -> Any:
            raise RuntimeError("open me in worker_init_fn")

    assert told(Later(NAMES))["samples"] == []


def test_a_slow_dataset_is_given_up() -> None:
    passed = iter([0.0, 0.1, 0.2, LIMIT_S + 0.3, 9.0, 9.0])
    assert len(fingerprint(Files(NAMES), lambda: next(passed))["samples"]) == 1


class Own:
    def __init__(self, number: int) -> None:
        self.number = number


@dataclasses.dataclass
class Item:
    pixels: Any
    text: str


def test_samples_count_by_what_they_contain() -> None:
    def item(pixel: float = 1.0, text: str = "a", where: str = "/one/x.png") -> Any:
        array = numpy.full((2, 3), pixel, dtype=numpy.float32)
        return [Item(array, text), {"set": {"p", "q"}, "path": Path(where), "none": None}, (1, True, 2.5, b"x")]

    assert digest(item()) == digest(item(where="/two/x.png"))
    others = [item(2.0), item(text="b"), item(where="/one/y.png"), item()[:2], [1, 2], (1, 2), "", None]
    assert len({digest(each) for each in [item(), *others]}) == len(others) + 1
    assert digest(torch.tensor([1.0])) != digest(torch.tensor([1.0], dtype=torch.float64))
    assert digest(torch.zeros(2, 3)) != digest(torch.zeros(3, 2))
    assert digest(object()) == digest(object())
    assert digest(Own(1)) == digest(Own(1)) != digest(Own(2))
    libraries = [torch.optim.swa_utils.SWALR.__new__(torch.optim.swa_utils.SWALR) for _ in range(2)]
    vars(libraries[0])["handle"] = 140_000_000
    assert digest(libraries[0]) == digest(libraries[1])
    nested: list[Any] = []
    nested.append(nested)
    assert digest(nested)


def test_images_count_by_their_pixels() -> None:
    image = pytest.importorskip("PIL.Image")
    white, black = (image.new("L", (4, 4), color) for color in (255, 0))
    assert digest(white) == digest(white.copy()) != digest(black)


def files(directory: Path, sizes: dict[str, int]) -> list[Path]:
    directory.mkdir()
    for name, size in sizes.items():
        (directory / name).write_bytes(b"x" * size)
    return [directory / name for name in sizes]


def test_shards_are_compared_by_names_sizes_and_order(tmp_path: Path) -> None:
    sizes = {f"train-{i}.tar": 10 + i for i in range(4)}
    here, there = files(tmp_path / "here", sizes), files(tmp_path / "there", sizes)
    assert compared(Shards(here, open=iter), Shards(there, open=iter)) is None
    found = compared(Shards(here[::-1], open=iter), Shards(there, open=iter))
    assert found is not None
    assert found.endswith(
        "entry 0 is 'train-0.tar' there and 'train-3.tar' here, the same names in another order: sort them"
    )
    here[2].write_bytes(b"x")
    assert "'train-2.tar' has 12 bytes there and 1 here" in (
        compared(Shards(here, open=iter), Shards(there, open=iter)) or ""
    )
    found = compared(Shards(here[:3], open=iter), Shards(there, open=iter))
    assert found == f"the dataset has 4 shards for {THEM} and 3 for {ME}: give all servers the same files"
    parts, swapped = [("a.txt", 0), ("a.txt", 1)], [("a.txt", 1), ("a.txt", 0)]
    assert compared(Shards(parts, open=iter), Shards(list(parts), open=iter)) is None
    assert compared(Shards(parts, open=iter), Shards(swapped, open=iter)) is not None


def test_an_iterable_dataset_is_compared_by_its_lists_of_files() -> None:
    class Stream(IterableDataset[int]):
        def __init__(self, urls: list[str]) -> None:
            self.urls = urls

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("looking does not open it")

    assert compared(divided(Stream(NAMES), 4), divided(Stream(NAMES), 4)) is None
    assert "Its 'urls'" in (compared(divided(Stream(NAMES[::-1]), 4), divided(Stream(NAMES), 4)) or "")


def test_chosen_samples_are_a_function_of_the_length() -> None:
    assert chosen(2, 3) == [0, 1]
    assert chosen(10_000, 3) == chosen(10_000, 3)
    assert len(set(chosen(10_000, 3))) == 3
    assert all(0 <= each < 10_000 for each in chosen(10_000, 3))


def test_who_takes_a_state_over_compares_and_an_older_state_says_nothing() -> None:
    giver = Likeness(Files(NAMES), THEM, NOW)
    Likeness(Files(NAMES), ME, NOW).check(giver.plain())
    Likeness(Files(NAMES[::-1]), ME, NOW).check(None)
    with pytest.raises(Unlike, match="Its 'files'"):
        Likeness(Files(NAMES[::-1]), ME, NOW).check(giver.plain())
    Likeness(Files(NAMES[::-1]), ME, NOW, samples=False).check(giver.plain())
    with pytest.raises(Unlike, match="has 100 samples"):
        Likeness(Files(NAMES[:9]), ME, NOW, samples=False).check(giver.plain())


def test_a_newcomer_with_another_order_must_not_join_and_those_with_the_state_go_on() -> None:
    def watch(size: int) -> OrderWatch:
        return OrderWatch(SerialSampler(OwnOrder(size, 0, True), 1, 2))

    parts = [Part(3, (0,)), Part(3, (0,)), Part(3, (), joins=True)]

    def read(*sizes: int) -> list[type[BaseException] | None]:
        watches = [watch(size) for size in sizes]
        payloads = [each.payload(part) for each, part in zip(watches, parts, strict=True)]
        ends: list[type[BaseException] | None] = []
        for each, part in zip(watches, parts, strict=True):
            try:
                each.read(part, payloads)
                ends.append(None)
            except UserError as error:
                ends.append(type(error))
        return ends

    assert read(20, 20, 20) == [None, None, None]
    assert read(20, 20, 21) == [None, None, Unlike]
    assert read(20, 21, 20) == [UserError, UserError, Unlike]
