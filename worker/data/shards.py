"""Data that can only be read in sequence, as a script describes it: `Shards`, and PyTorch's `IterableDataset`.

A shard is any value that `open` understands: a path, an address, a number. The object that `open` returns is iterated
for samples, and must yield the same samples in the same order each time it is opened in an epoch. A worker that takes
over a shard in the middle opens it and reads up to the position. If the object has `state_dict()` and
`load_state_dict(state)`, as the datasets of Hugging Face and of torchdata have, the worker continues from such a state
instead.

An `IterableDataset` divides itself: it asks `torch.utils.data.get_worker_info()` which part of how many to yield. Here
each virtual worker is one such part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ...protocol.errors import UserError


class Shards:
    """A dataset of shards, each read in sequence by one virtual worker at a time: `Shards(paths, open=read)`.

    - `shards`: paths, addresses, numbers or other values, one per shard.
    - `open`: a function that takes a shard and returns an iterable of its samples, the same in each call within an
      epoch.

    Use many more shards than virtual workers (EDL 5.3). With fewer shards, several virtual workers read the same shard,
    each all of it, and each uses its own samples. Raises UserError if there is no shard, or if `open` cannot be called.
    """

    def __init__(self, shards: Iterable[Any], open: Callable[[Any], Iterable[Any]]) -> None:
        """open(shard): returns the samples of the shard. Raises UserError if there is no shard, or if `open` cannot be
        called.
        """
        self.shards = [shards] if isinstance(shards, str | PurePath) else list(shards)
        if not self.shards:
            raise UserError("elastic.Shards has no shard: did a pattern match no file?")
        if not callable(open):
            raise UserError(f"open={open!r} cannot be called: it must take a shard and return its samples")
        self._open = open
        self.source: Any = None  # the `IterableDataset` of which the shards are parts
        # parts of an `IterableDataset`: all are read at the same time, and samples may change with each epoch
        self.divided = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the shards in error messages, which also identify shards after a restart."""
        return tuple(
            str(shard) if isinstance(shard, str | int | PurePath) else f"number {number}"
            for number, shard in enumerate(self.shards)
        )

    def open(self, number: int) -> Iterable[Any]:
        """Return the samples of one shard, by its number.

        Raises UserError if `open` returns an object that cannot be iterated.
        """
        found = self._open(self.shards[number])
        if not hasattr(found, "__iter__"):
            what = type(found).__name__
            raise UserError(f"open({self.names[number]!r}) returned a {what}: it must return the samples of the shard")
        return found


def divided(dataset: IterableDataset[Any], parts: int) -> Shards:
    """Return an iterable dataset as `parts` shards, one for each virtual worker."""
    shards = Shards(range(parts), lambda number: _Part(dataset, number, parts))
    shards.source, shards.divided = dataset, True
    return shards


def _own_copy(dataset: IterableDataset[Any]) -> IterableDataset[Any]:
    try:
        return copy.deepcopy(dataset)
    except (TypeError, ValueError, AttributeError, NotImplementedError, copy.Error) as error:
        raise UserError(
            f"the IterableDataset {type(dataset).__name__} cannot be copied, of which each virtual worker reads one ({error}): "
            "open files and connections in its __iter__, not in its __init__"
        ) from None


class _PartInfo:
    """The object that `get_worker_info()` returns while a part is read.

    Its `asked` records whether the dataset has read `id`.
    """

    def __init__(self, dataset: Any, number: int, parts: int) -> None:
        self.dataset = dataset
        self.num_workers = parts
        self._number = number
        self.asked = False

    @property
    def id(self) -> int:
        self.asked = True
        return self._number

    @property
    def seed(self) -> int:
        return torch.initial_seed()


class _Part:
    """The part of an iterable dataset that one virtual worker reads."""

    def __init__(self, dataset: IterableDataset[Any], number: int, parts: int) -> None:
        self._dataset = _own_copy(dataset)  # an iteration may change the dataset, as in a data worker
        self._info = _PartInfo(self._dataset, number, parts)
        for name in ("state_dict", "load_state_dict", "set_epoch"):
            if callable(method := getattr(self._dataset, name, None)):
                setattr(self, name, method)

    def __iter__(self) -> Iterator[Any]:
        with _as_worker(self._info):
            iterator = iter(self._dataset)
        while True:
            with _as_worker(self._info):
                try:
                    sample = next(iterator)
                except StopIteration:
                    return
            if not self._info.asked and self._info.num_workers > 1:
                raise UserError(_does_not_divide(self._dataset, self._info.num_workers))
            yield sample


@contextmanager
def _as_worker(info: _PartInfo) -> Iterator[None]:
    """Let `torch.utils.data.get_worker_info()` return `info` in this context. torch has no public function for this."""
    module = torch.utils.data._utils.worker
    before, module._worker_info = module._worker_info, info  # type: ignore[assignment]
    try:
        yield
    finally:
        module._worker_info = before


def _does_not_divide(dataset: Any, parts: int) -> str:
    name = type(dataset).__name__
    return (
        f"the IterableDataset {name} does not look at torch.utils.data.get_worker_info(), so each of the {parts} virtual workers "
        "would read all of it: let __iter__ give part `info.id` of `info.num_workers`; or pass elastic.Shards(files, open=read), "
        "or elastic.Shards([dataset], open=iter), of which each virtual worker reads everything and takes its own samples"
    )
