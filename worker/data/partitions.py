"""Which samples of which shard a virtual worker trains in a step, where shards can only be read in sequence. Pure.

EDL (5.3) hands partitions out on demand: its leader deals them from a random permutation, each worker tells its offset after
every mini-batch, and a leaver's rest goes to another. Which sample is trained when then depends on who asked first, which EDL
accepts. Here the same partitions go to *virtual* workers, and what is handed out is a function of the shards' lengths and the
seed alone. So the order of samples is the same for every number of workers and after any loss, and nobody has to ask a leader.

The state of a step (`Stand`) says which part of which shard each *stream* reads, one stream for each virtual worker, and which
shards wait. Stream j takes `batch_size` samples. If its part ends on the way, it goes on in the same batch with the waiting
shards number j, j + N, j + 2N and so on, which no other stream touches in this step. Shards that were not begun keep waiting.
A stream without a part gets the first that waits. If none waits, it gets every second sample of what another has to read: so
all have work until an epoch's end, and a job may have fewer shards than virtual workers.

A shard's length is not known before its end has been read. So the batches of step s + 1 are read before step s ends. The lengths
that are met there are told in band (`HandOut.learn`), so that at the boundary all workers know those that step s + 1 depends on.
An epoch ends when no stream has a sample left; by then all lengths are known, and from then on nothing has to be told.

Parts of a dataset that divides itself have other lengths in each epoch (`Rules.volatile`), so these are learnt anew. Whether an
epoch ends is found out only by reading on. So a stream that finds nothing more to read also reads its first batch of the next
epoch (`HandOut.next_first`), and the ends that it meets there are told as well.

Towards an epoch's end streams run dry at different times. Those that have samples in a step are moved to the front: the
virtual workers without any are the last ones, as in a short last step of `sampling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy

from ...protocol.errors import PeerError, UserError
from ..virtual import derive_seed


@dataclass(frozen=True)
class Partition:
    """Samples `first`, `first + stride`, ... of a shard, to its end. Counted from 0."""

    shard: int
    first: int = 0
    stride: int = 1

    def left(self, length: int | None) -> float:
        """How many samples that are; infinitely many as far as is known if the shard's length is not."""
        if length is None:
            return float("inf")
        return max(0, -(-(length - self.first) // self.stride))

    def after(self, count: int) -> Partition:
        """What is left of it after so many samples."""
        return replace(self, first=self.first + count * self.stride)


@dataclass(frozen=True)
class Piece:
    """The first `count` samples of a partition."""

    partition: Partition
    count: int


@dataclass(frozen=True)
class Share:
    """What one virtual worker reads in a step."""

    stream: int  # that it comes from
    pieces: tuple[Piece, ...]
    rest: Partition | None  # where the stream goes on
    begun: tuple[int, ...]  # shards that waited before

    @property
    def count(self) -> int:
        """Samples."""
        return sum(piece.count for piece in self.pieces)


@dataclass(frozen=True)
class Stand:
    """What each stream reads from one step on, and what waits."""

    epoch: int
    parts: tuple[Partition | None, ...]  # by stream
    waiting: tuple[int, ...] = ()  # shards, in their order

    @property
    def dry(self) -> bool:
        """Is there nothing left to read in the epoch, as far as lengths are known?"""
        return not self.waiting and all(part is None for part in self.parts)


@dataclass(frozen=True)
class Rules:
    """What the hand-out depends on beside the lengths. shards: how many there are. batch_size: of one virtual worker. volatile:
    each epoch has shards of other lengths."""

    shards: int
    virtual_workers: int
    batch_size: int
    seed: int
    shuffle: bool = True
    volatile: bool = False

    def begin(self, epoch: int, lengths: Mapping[int, int]) -> Stand:
        """An epoch begins."""
        order = numpy.arange(self.shards)
        if self.shuffle:  # as in `sampling`: by raw keys, which stay the same in all versions of NumPy
            keys = numpy.random.PCG64(derive_seed(self.seed, "shards", epoch)).random_raw(self.shards)
            order = numpy.argsort(keys, kind="stable")
        empty: tuple[Partition | None, ...] = (None,) * self.virtual_workers
        return self._supply(Stand(epoch, empty, tuple(order.tolist())), lengths)

    def follow(self, stand: Stand, lengths: Mapping[int, int]) -> Stand:
        """What holds after the step. lengths: of all shards that end in it, and of others."""
        shares = self.shares(stand, lengths)
        begun = {shard for share in shares for shard in share.begun}
        waiting = tuple(shard for shard in stand.waiting if shard not in begun) if begun else stand.waiting
        following = self._supply(Stand(stand.epoch, tuple(share.rest for share in shares), waiting), lengths)
        return self.after(stand.epoch, lengths) if following.dry else following

    def after(self, epoch: int, lengths: Mapping[int, int]) -> Stand:
        """The beginning of the epoch that follows."""
        return self.begin(epoch + 1, {} if self.volatile else lengths)

    def shares(self, stand: Stand, lengths: Mapping[int, int]) -> list[Share]:
        """By virtual worker, those with samples first. lengths: as in `follow`."""
        found = [self._share(stand, stream, lengths) for stream in range(self.virtual_workers)]
        return _filled_first(found)

    def reads(self, stand: Stand, stream: int) -> Iterator[Partition]:
        """What the stream reads one after the other until its batch is full."""
        part = stand.parts[stream]
        own = () if part is None else (part,)
        return chain(own, map(Partition, stand.waiting[stream :: self.virtual_workers]))

    def _share(self, stand: Stand, stream: int, lengths: Mapping[int, int]) -> Share:
        room = self.batch_size
        pieces: list[Piece] = []
        rest = None
        begun: list[int] = []
        for number, partition in enumerate(self.reads(stand, stream)):
            if room == 0:
                break
            if number or stand.parts[stream] is None:
                begun.append(partition.shard)
            count = int(min(room, partition.left(lengths.get(partition.shard))))
            if count:
                pieces.append(Piece(partition, count))
            room -= count
            rest = partition.after(count)
        if rest is not None and rest.left(lengths.get(rest.shard)) == 0:
            rest = None
        return Share(stream, tuple(pieces), rest, tuple(begun))

    def _supply(self, stand: Stand, lengths: Mapping[int, int]) -> Stand:
        """Give the streams that have nothing something to read."""
        if all(part is not None for part in stand.parts):
            return stand
        parts, waiting = list(stand.parts), [*stand.waiting]
        for stream in range(len(parts)):
            while parts[stream] is None and waiting:
                next_one = Partition(waiting.pop(0))
                parts[stream] = next_one if next_one.left(lengths.get(next_one.shard)) else None
            if parts[stream] is None:
                self._divide(parts, stream, lengths)
        return replace(stand, parts=tuple(parts), waiting=tuple(waiting))

    def _divide(self, parts: list[Partition | None], stream: int, lengths: Mapping[int, int]) -> None:
        """Let the stream have every second sample of the longest part there is, if that is more than one batch."""
        longest, least, owner = 0.0, 0, -1
        for other, part in enumerate(parts):
            if part is not None:
                left = part.left(lengths.get(part.shard))
                if left > self.batch_size and (left, -part.stride) > (longest, least):
                    longest, least, owner = left, -part.stride, other
        if (part := parts[owner] if owner >= 0 else None) is not None:
            parts[owner] = replace(part, stride=2 * part.stride)
            parts[stream] = replace(part, first=part.first + part.stride, stride=2 * part.stride)


def _filled_first(shares: list[Share]) -> list[Share]:
    """The same, but where one is empty the last that is not takes its place: most stay where they are."""
    last = len(shares) - 1
    for position in range(len(shares)):
        while last > position and not shares[last].count:
            last -= 1
        if last > position and not shares[position].count:
            shares[position], shares[last] = shares[last], shares[position]
    return shares


class HandOut:
    """Where a job is in its shards, as every worker knows it; it travels with the state."""

    def __init__(self, rules: Rules, names: tuple[str, ...]) -> None:
        """names: of the shards, for errors, and to know them again."""
        self.rules = rules
        self.names = names
        self._known: dict[int, dict[int, int]] = {}  # by epoch: lengths by shard, as of the step to come
        self.begun = False  # are the lengths known on which the step to come depends? Not before a job's first step
        self._stand: Stand | None = None  # of the step to come; None: nothing has been read yet
        self._learnt: dict[int, dict[int, int]] = {}  # likewise: in the step in progress
        self._shares: list[Share] | None = None
        self._following: Stand | None = None

    @property
    def stand(self) -> Stand:
        if self._stand is None:
            self._stand = self.rules.begin(0, {})
        return self._stand

    @property
    def lengths(self) -> dict[int, int]:
        """By shard, in samples: those that the step to come depends on, and others."""
        return self._of(self._known, self.epoch)

    def _of(self, lengths: dict[int, dict[int, int]], epoch: int) -> dict[int, int]:
        return lengths.setdefault(epoch if self.rules.volatile else 0, {})

    @property
    def epoch(self) -> int:
        """Of the step to come."""
        return self.stand.epoch

    @property
    def shares(self) -> list[Share]:
        """Of the step to come, by virtual worker."""
        if self._shares is None:
            self._shares = self.rules.shares(self.stand, self.lengths)
        return self._shares

    @property
    def following(self) -> Stand:
        """Of the step after the one to come: what has to be read now, to learn which shards end there."""
        if self._following is None:
            self._following = self.rules.follow(self.stand, self.lengths)
        return self._following

    def next_first(self, stream: int, empty: bool) -> Stand | None:
        """What the stream has to read of the next epoch now, since it has nothing to read in this one. empty: nothing came of its
        batch of the step after the one to come. None: it does not have to."""
        following = self.following
        dry = empty or following.parts[stream] is None
        if self.rules.volatile and following.epoch == self.epoch and dry:
            return self.rules.after(self.epoch, {})
        return None

    def first(self, lengths: Mapping[int, int]) -> None:
        """All batches of the step to come have been read, and met these shards' ends. Raises UserError without a sample."""
        self._check(lengths, self.epoch)
        self.lengths.update(lengths)
        self.begun = True
        self._forget()
        self._skip_what_is_dry()

    def learn(self, lengths: Mapping[int, int], epoch: int) -> None:
        """In the step in progress these ends have been met, by whoever read the batches of the next. Raises UserError."""
        self._check(lengths, epoch)
        self._of(self._learnt, epoch).update(lengths)

    def applied(self) -> None:
        """The step in progress is over: the next one is to come."""
        self._stand = self.following
        for key, learnt in self._learnt.items():
            self._known.setdefault(key, {}).update(learnt)
        self._forget()
        self._skip_what_is_dry()

    def unknown(self, lengths: Mapping[int, int], epoch: int) -> dict[int, int]:
        """Those of `lengths` that are not known yet. Raises UserError if others are known to be different."""
        self._check(lengths, epoch)
        known = self._of(self._known, epoch)
        return {shard: length for shard, length in lengths.items() if shard not in known}

    def _skip_what_is_dry(self) -> None:
        """The end of the epoch may have been found only by reading on."""
        if not any(share.count for share in self.shares):
            if not any(self.lengths.values()):
                raise UserError(f"none of the {self.rules.shards} shards has a sample")
            self._stand = self.rules.after(self.epoch, self.lengths)
            self._forget()
        if self.rules.volatile:
            self._known = {epoch: known for epoch, known in self._known.items() if epoch >= self.epoch}

    def _check(self, lengths: Mapping[int, int], epoch: int) -> None:
        before, now = self._of(self._known, epoch), self._of(self._learnt, epoch)
        for shard, length in lengths.items():
            known = before.get(shard, now.get(shard, length))
            if known != length:
                raise UserError(
                    f"shard {self.names[shard]} had {known} samples when it was read before, and has {length} now: it must give "
                    "the same samples in the same order each time it is opened"
                )

    def _forget(self) -> None:
        self._learnt, self._shares, self._following = {}, None, None

    # -- as it travels

    def state(self) -> dict[str, Any]:
        """In plain values, as of the boundary before the step to come."""
        stand = self.stand
        return {
            "names": self._names_digest(),
            "epoch": stand.epoch,
            "parts": [None if part is None else [part.shard, part.first, part.stride] for part in stand.parts],
            "waiting": list(stand.waiting),
            "lengths": [
                [epoch, [known.get(shard, -1) for shard in range(self.rules.shards)]]
                for epoch, known in sorted(self._known.items())
                if known
            ],
            "begun": self.begun,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take it over. Raises UserError if it is that of other shards, PeerError if it is none."""
        if state["names"] != self._names_digest():
            raise UserError("another dataset: the training state is that of other shards, or of another number of them")
        try:
            parts = tuple(None if part is None else Partition(*part) for part in state["parts"])
            self._stand = Stand(int(state["epoch"]), parts, tuple(state["waiting"]))
            self._known = {
                int(epoch): {shard: length for shard, length in enumerate(lengths) if length >= 0}
                for epoch, lengths in state["lengths"]
            }
            self.begun = bool(state["begun"])
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"this is not where a job is in its shards: {error}") from None
        self._forget()

    def _names_digest(self) -> int:
        return derive_seed(self.rules.virtual_workers, self.rules.batch_size, *self.names)


def weights(counts: Iterable[int]) -> list[float]:
    """What to multiply each virtual worker's mean gradient by, so that the mean over all of them is that over their samples."""
    each = list(counts)
    total = sum(each)
    return [count * len(each) / total for count in each]
