"""Assignment of the samples of shards, which can only be read in sequence, to virtual workers in each step. Pure.

EDL (5.3) hands partitions out on demand: its leader deals them from a random permutation, each worker reports its
offset after every mini-batch, and the rest of a leaving worker's partition goes to another worker. The order of samples
then depends on which worker asks first, which EDL accepts. Here the same partitions go to *virtual* workers, and the
assignment is a function of the shards' lengths and the seed alone. So the order of samples is the same for every number
of workers and after any loss, and no worker has to ask a leader.

The state of a step (`Stand`) says which part of which shard each *stream* reads, with one stream for each virtual
worker, and which shards wait. Stream j takes `batch_size` samples. If its part ends on the way, the same batch
continues with the waiting shards number j, j + N, j + 2N and so on, which no other stream touches in this step. Shards
that were not begun keep waiting. A stream without a part gets the first waiting shard. If none waits, it gets every
second sample of another stream's rest: so all streams have work until an epoch's end, and a job may have fewer shards
than virtual workers.

A shard's length is unknown until its end has been read. So the batches of step s + 1 are read before step s ends. The
lengths that are found there are sent in band (`HandOut.learn`), so that at the boundary all workers know the lengths on
which step s + 1 depends. An epoch ends when no stream has a sample left; by then all lengths are known, and no more are
sent.

Parts of a dataset that divides itself have other lengths in each epoch (`Rules.volatile`), so these lengths are learnt
again in each. Then only reading on reveals the end of an epoch. So a stream with nothing more to read also reads its
first batch of the next epoch (`HandOut.next_first`), and the ends that it meets there are sent as well.

Towards an epoch's end streams run out at different times. Streams with samples in a step are moved to the front: the
virtual workers without samples are the last ones, as in a short last step of `sampling`.
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
    """Samples `first`, `first + stride`, ... of a shard, to its end. Samples are counted from 0."""

    shard: int
    first: int = 0
    stride: int = 1

    def left(self, length: int | None) -> float:
        """Return the number of samples in the partition; infinity if the shard's `length` is unknown (None)."""
        if length is None:
            return float("inf")
        return max(0, -(-(length - self.first) // self.stride))

    def after(self, count: int) -> Partition:
        """Return the rest of the partition after its first `count` samples."""
        return replace(self, first=self.first + count * self.stride)


@dataclass(frozen=True)
class Piece:
    """The first `count` samples of a partition."""

    partition: Partition
    count: int


@dataclass(frozen=True)
class Share:
    """Samples that one virtual worker reads in a step."""

    stream: int  # from which the samples come
    pieces: tuple[Piece, ...]
    rest: Partition | None  # where the stream continues in the next step
    begun: tuple[int, ...]  # waiting shards that the stream begins in this step

    @property
    def count(self) -> int:
        """Number of samples."""
        return sum(piece.count for piece in self.pieces)


@dataclass(frozen=True)
class Stand:
    """State of the hand-out at a step: the part that each stream reads, and the shards that wait."""

    epoch: int
    parts: tuple[Partition | None, ...]  # by stream
    waiting: tuple[int, ...] = ()  # shards, in their order

    @property
    def dry(self) -> bool:
        """Whether nothing is left to read in the epoch, as far as lengths are known."""
        return not self.waiting and all(part is None for part in self.parts)


@dataclass(frozen=True)
class Rules:
    """Parameters of the hand-out beside the lengths.

    shards: their number. batch_size: samples of one virtual worker in a step. volatile: shards have other lengths in
    each epoch.
    """

    shards: int
    virtual_workers: int
    batch_size: int
    seed: int
    shuffle: bool = True
    volatile: bool = False

    def begin(self, epoch: int, lengths: Mapping[int, int]) -> Stand:
        """Return the state at the beginning of an epoch."""
        order = numpy.arange(self.shards)
        if self.shuffle:  # as in `sampling`: by raw keys, which stay the same in all versions of NumPy
            keys = numpy.random.PCG64(derive_seed(self.seed, "shards", epoch)).random_raw(self.shards)
            order = numpy.argsort(keys, kind="stable")
        empty: tuple[Partition | None, ...] = (None,) * self.virtual_workers
        return self._supply(Stand(epoch, empty, tuple(order.tolist())), lengths)

    def follow(self, stand: Stand, lengths: Mapping[int, int]) -> Stand:
        """Return the state after the step. lengths: of all shards that end in the step; may include others."""
        shares = self.shares(stand, lengths)
        begun = {shard for share in shares for shard in share.begun}
        waiting = tuple(shard for shard in stand.waiting if shard not in begun) if begun else stand.waiting
        following = self._supply(Stand(stand.epoch, tuple(share.rest for share in shares), waiting), lengths)
        return self.after(stand.epoch, lengths) if following.dry else following

    def after(self, epoch: int, lengths: Mapping[int, int]) -> Stand:
        """Return the state at the beginning of the epoch after `epoch`."""
        return self.begin(epoch + 1, {} if self.volatile else lengths)

    def shares(self, stand: Stand, lengths: Mapping[int, int]) -> list[Share]:
        """Return the samples of each virtual worker in the step, those with samples first. lengths: as in `follow`."""
        found = [self._share(stand, stream, lengths) for stream in range(self.virtual_workers)]
        return _filled_first(found)

    def reads(self, stand: Stand, stream: int) -> Iterator[Partition]:
        """Yield the partitions that the stream reads one after the other until its batch is full."""
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
        """Give each stream without a partition something to read: a waiting shard, or part of another stream's
        partition.
        """
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
        """Give the stream every second sample of the longest partition, if that has more than one batch."""
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
    """Return the shares with empty ones at the end.

    The last filled share takes the place of an empty one, so that most stay.
    """
    last = len(shares) - 1
    for position in range(len(shares)):
        while last > position and not shares[last].count:
            last -= 1
        if last > position and not shares[position].count:
            shares[position], shares[last] = shares[last], shares[position]
    return shares


class HandOut:
    """A job's position in its shards, as every worker knows it; part of the training state."""

    def __init__(self, rules: Rules, names: tuple[str, ...]) -> None:
        """names: of the shards, for errors and to recognize them after a restart."""
        self.rules = rules
        self.names = names
        self._known: dict[int, dict[int, int]] = {}  # by epoch: lengths by shard, as of the next step
        # whether the lengths are known on which the next step depends; False before a job's first step
        self.begun = False
        self._stand: Stand | None = None  # of the next step; None: nothing has been read yet
        # by epoch: lengths by shard that were learnt in the step in progress
        self._learnt: dict[int, dict[int, int]] = {}
        self._shares: list[Share] | None = None
        self._following: Stand | None = None

    @property
    def stand(self) -> Stand:
        if self._stand is None:
            self._stand = self.rules.begin(0, {})
        return self._stand

    @property
    def lengths(self) -> dict[int, int]:
        """Known lengths by shard, in samples: those on which the next step depends, and perhaps others."""
        return self._of(self._known, self.epoch)

    def _of(self, lengths: dict[int, dict[int, int]], epoch: int) -> dict[int, int]:
        return lengths.setdefault(epoch if self.rules.volatile else 0, {})

    @property
    def epoch(self) -> int:
        """Epoch of the next step."""
        return self.stand.epoch

    @property
    def shares(self) -> list[Share]:
        """Samples of each virtual worker in the next step."""
        if self._shares is None:
            self._shares = self.rules.shares(self.stand, self.lengths)
        return self._shares

    @property
    def following(self) -> Stand:
        """State after the next step, which has to be read now to learn which shards end there."""
        if self._following is None:
            self._following = self.rules.follow(self.stand, self.lengths)
        return self._following

    def next_first(self, stream: int, empty: bool) -> Stand | None:
        """Return the state of the next epoch if the stream has to read its first batch there now; else None.

        That is the case if the stream has nothing more to read in this epoch. empty: the stream's batch of the step
        after the next one had no sample.
        """
        following = self.following
        dry = empty or following.parts[stream] is None
        if self.rules.volatile and following.epoch == self.epoch and dry:
            return self.rules.after(self.epoch, {})
        return None

    def first(self, lengths: Mapping[int, int]) -> None:
        """Take over the lengths of shards of which the ends were met in reading the job's first step.

        Raises UserError if no shard has a sample, or if a length differs from an earlier reading.
        """
        self._check(lengths, self.epoch)
        self.lengths.update(lengths)
        self.begun = True
        self._forget()
        self._skip_what_is_dry()

    def learn(self, lengths: Mapping[int, int], epoch: int) -> None:
        """Take over lengths that some worker found in the step in progress, by reading the next batches.

        Raises UserError if a length differs from an earlier reading.
        """
        self._check(lengths, epoch)
        self._of(self._learnt, epoch).update(lengths)

    def applied(self) -> None:
        """End the step in progress: the state moves on to the next step."""
        self._stand = self.following
        for key, learnt in self._learnt.items():
            self._known.setdefault(key, {}).update(learnt)
        self._forget()
        self._skip_what_is_dry()

    def unknown(self, lengths: Mapping[int, int], epoch: int) -> dict[int, int]:
        """Return those of `lengths` that are not known yet. Raises UserError if a known length differs."""
        self._check(lengths, epoch)
        known = self._of(self._known, epoch)
        return {shard: length for shard, length in lengths.items() if shard not in known}

    def _skip_what_is_dry(self) -> None:
        """Move to the next epoch if the step has no sample: the end of an epoch may be found only by reading on."""
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

    # -- the position as part of the state

    def state(self) -> dict[str, Any]:
        """Return the position in plain values, as of the boundary before the next step."""
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
        """Take over a position. Raises UserError if the position is that of other shards, PeerError if it is malformed."""
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
    """Return the factors of mean gradients with which the mean over N virtual workers is that over all samples."""
    each = list(counts)
    total = sum(each)
    return [count * len(each) / total for count in each]
