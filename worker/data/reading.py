"""Reads shards in sequence for the virtual workers of one process (EasyScale 3.2: a data worker serves several of
them).

For each virtual worker one shard is open, at some sample. A request for a later sample reads up to it; a request for an
earlier one opens the shard again. The samples of the last batches are kept, so that a repeated step reads nothing. If
the samples' iterable has `state_dict()`, its state is recorded now and then (`Mark`), and a worker that opens the shard
later begins there.

Random numbers that are drawn while a sample is read depend on the seed, the epoch, the shard and the sample's number
alone: the generators are seeded for each sample. So the sample is the same in any process, from any start, however far
ahead it is read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import default_collate

from ...protocol.errors import UserError
from ..virtual import derive_seed, seed_everything
from .partitions import Partition, Piece
from .shards import Shards

SPREAD = 0x9E3779B97F4A7C15  # seeds of neighbouring samples differ in all their bits (Steele et al., 2014: SplitMix)
KEPT_BATCHES = 3  # of the step in progress, of the next step, and of a step that another worker has applied


@dataclass(frozen=True)
class Mark:
    """A position at which a shard can be opened: before its sample `at`, with this state."""

    epoch: int
    shard: int
    at: int
    state: Any


@dataclass(frozen=True)
class StreamRequest:
    """Request for one micro-batch, with everything on which reading depends."""

    number: int  # of the batch; equal to the step if each step has another batch
    virtual_worker: int
    epoch: int
    part: Partition | None  # read first
    waiting: tuple[int, ...]  # shards that are read after `part`
    pieces: tuple[Piece, ...] | None  # exactly these samples instead, if they are known
    size: int  # samples at most
    seed: int  # of the job
    marks: tuple[Mark, ...] = ()  # known marks of the shards to be read
    wants_mark: bool = False  # a mark is wanted of the position where the request begins
    peeks: bool = False  # only the ends of shards are wanted, no batch

    @property
    def key(self) -> tuple[int, int]:
        return self.number, self.virtual_worker

    def partitions(self) -> Iterator[tuple[Partition, int]]:
        """Yield the partitions to read one after the other, each with the greatest number of its samples."""
        if self.pieces is not None:
            yield from ((piece.partition, piece.count) for piece in self.pieces)
            return
        if self.part is not None:
            yield self.part, self.size
        yield from ((Partition(shard), self.size) for shard in self.waiting)


@dataclass(frozen=True)
class Reading:
    """Result of a request. batch: None without a sample. ended: lengths of the shards of which the ends were met."""

    epoch: int
    pieces: tuple[Piece, ...]
    batch: Any
    ended: dict[int, int]
    mark: Mark | None = None  # at or before the first sample


class _Shard:
    """An open shard."""

    def __init__(self, shards: Shards, number: int, epoch: int, seed: int, mark: Mark | None) -> None:
        self.number, self.epoch = number, epoch
        self.at = mark.at if mark is not None else 0  # number of the next sample
        self.ended = False
        self._seed = derive_seed(seed, "shard", epoch, number)
        seed_everything(self._seed)
        samples = shards.open(number)
        if callable(set_epoch := getattr(samples, "set_epoch", None)):
            set_epoch(epoch)
        if mark is not None:
            samples.load_state_dict(mark.state)  # type: ignore[attr-defined]
        self._state_dict = getattr(samples, "state_dict", None)
        self._can_mark = callable(self._state_dict) and callable(getattr(samples, "load_state_dict", None))
        self._iterator = iter(samples)

    def next(self) -> Any:
        """Return the next sample. Raises StopIteration at the end."""
        seed_everything((self._seed + (self.at + 1) * SPREAD) % 2**63)
        try:
            sample = next(self._iterator)
        except StopIteration:
            self.ended = True
            raise
        self.at += 1
        return sample

    def mark(self) -> Mark | None:
        """Return a mark of the present position; None at the beginning and the end, or if the samples have no
        `state_dict`.
        """
        if not self._can_mark or not self.at or self.ended:
            return None
        assert self._state_dict is not None
        return Mark(self.epoch, self.number, self.at, self._state_dict())

    def close(self) -> None:
        if callable(close := getattr(self._iterator, "close", None)):
            close()


class ShardReader:
    """Reads the samples of requests, in the training process or in a process for reading."""

    def __init__(
        self, shards: Shards, collate: Callable[[list[Any]], Any] | None, keeps: bool, copies: bool = False
    ) -> None:
        """keeps: samples may be kept for repeated steps, because no code changes them: batches share no memory with
        them, or are copied on their way. copies: batches are made of copies of the samples, so that they share no
        memory.
        """
        self._shards = shards
        self._collate = collate or default_collate
        self._keeps = keeps
        self._copies = copies
        self._open: dict[int, _Shard] = {}  # by virtual worker
        self._kept: dict[int, dict[tuple[int, int, int], Any]] = {}  # by virtual worker: by epoch, shard and number

    def keep_only(self, virtual_workers: Iterable[int]) -> None:
        """Close the shards of all other virtual workers, which are read elsewhere from now on."""
        wanted = set(virtual_workers)
        for virtual_worker in [each for each in self._open if each not in wanted]:
            self._open.pop(virtual_worker).close()
            self._kept.pop(virtual_worker, None)

    def read(self, request: StreamRequest) -> Reading:
        """Read a request. Raises UserError if a shard ends before samples that it had in an earlier reading."""
        samples: list[Any] = []
        pieces: list[Piece] = []
        ended: dict[int, int] = {}
        mark = self._mark(request) if request.wants_mark else None
        for partition, most in request.partitions():
            if len(samples) == request.size:
                break
            found = self._read_part(request, partition, min(most, request.size - len(samples)), ended)
            if request.pieces is not None and len(found) < most:
                self._is_shorter(partition, ended)
            if found:
                pieces.append(Piece(partition, len(found)))
            samples.extend(found)
        if not samples or request.peeks:
            return Reading(request.epoch, tuple(pieces), None, ended, mark)
        if self._copies:
            samples = copy.deepcopy(samples)
        seed_everything(derive_seed(request.seed, "data", request.number, request.virtual_worker))
        return Reading(request.epoch, tuple(pieces), self._collate(samples), ended, mark)

    def _read_part(self, request: StreamRequest, partition: Partition, count: int, ended: dict[int, int]) -> list[Any]:
        """Return `count` samples of a partition, or all if there are fewer; then `ended` gets the shard's length."""
        found: list[Any] = []
        kept = self._kept.setdefault(request.virtual_worker, {})
        first, stride = partition.first, partition.stride
        for number in range(first, first + count * stride, stride):
            key = (request.epoch, partition.shard, number)
            if key not in kept:
                try:
                    sample = self._pull(request, partition.shard, number)
                except StopIteration:
                    ended[partition.shard] = self._open[request.virtual_worker].at
                    return found
                if not self._keeps:
                    found.append(sample)
                    continue
                kept[key] = sample
                if len(kept) > KEPT_BATCHES * request.size:
                    del kept[next(iter(kept))]
            found.append(kept[key])
        return found

    def _pull(self, request: StreamRequest, number: int, wanted: int) -> Any:
        """Return sample `wanted` of a shard, from its source. Raises StopIteration if the shard is shorter."""
        shard = self._open.get(request.virtual_worker)
        if shard is None or (shard.number, shard.epoch) != (number, request.epoch) or shard.at > wanted:
            if shard is not None:
                shard.close()
            shard = _Shard(self._shards, number, request.epoch, request.seed, _nearest(request, number, wanted))
            self._open[request.virtual_worker] = shard
        if shard.ended:
            raise StopIteration
        while shard.at < wanted:
            shard.next()
        return shard.next()

    def _mark(self, request: StreamRequest) -> Mark | None:
        """Return a mark of the shard with which the request begins, if the shard is at or before the first sample."""
        shard, part = self._open.get(request.virtual_worker), request.part
        if shard is None or part is None or (shard.number, shard.epoch) != (part.shard, request.epoch):
            return None
        return shard.mark() if shard.at <= part.first else None

    def _is_shorter(self, partition: Partition, ended: dict[int, int]) -> None:
        name = self._shards.names[partition.shard]
        raise UserError(
            f"shard {name} ended after {ended[partition.shard]} samples, and had more when it was read before: it must give the "
            "same samples in the same order each time it is opened"
        )


def _nearest(request: StreamRequest, shard: int, wanted: int) -> Mark | None:
    """Return the last mark from which sample `wanted` of a shard can be reached."""
    fit = [each for each in request.marks if (each.epoch, each.shard) == (request.epoch, shard) and each.at <= wanted]
    return max(fit, key=lambda each: each.at, default=None)
