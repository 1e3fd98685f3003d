"""The micro-batches of shards that are read in sequence: what `sampling` and `loading` are for data that has an index.

`partitions` says which virtual worker reads what; `reading` reads it. This module keeps what has been read one step ahead, and
tells the other workers which shards have ended there (`inband.Participant`). So all know at each boundary how many samples each
virtual worker has in the step to come, and whether there is one in this epoch.

Where a job makes several updates from one batch (`updates`), so many steps after each other have the same *number*, and the same
batches. What is told, is told in the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from ...protocol.errors import UserError
from ..inband import Part
from ..state.plain import pack, unpack
from .fetching import move_to
from .partitions import HandOut, Partition, Rules, Share, Stand, weights
from .reading import Mark, Reading, ShardReader, StreamRequest
from .shards import Shards

MARK_STEPS = (
    128  # so often all are told where shards stand: whoever takes one over reads no more than the samples since
)


class Source(Protocol):
    """Who reads."""

    reads_at_once: bool  # in `ask`, which may raise what reading raises

    def ask(self, request: StreamRequest) -> None:
        """It will be wanted."""

    def get(self, request: StreamRequest) -> Reading:
        """What came of it. Raises what reading raised."""

    def keep_only(self, virtual_workers: range) -> None:
        """Others are read elsewhere from now on."""

    def close(self) -> None:
        """Nothing will be asked for any more."""


class Here:
    """This process reads, as soon as something is asked for: reading draws random numbers, and may do so now."""

    reads_at_once = True

    def __init__(self, reader: ShardReader) -> None:
        self._reader = reader
        self._read: dict[tuple[int, int], Reading] = {}

    def ask(self, request: StreamRequest) -> None:
        self._read[request.key] = self._reader.read(request)

    def get(self, request: StreamRequest) -> Reading:
        return self._read.pop(request.key)

    def keep_only(self, virtual_workers: range) -> None:
        self._reader.keep_only(virtual_workers)

    def close(self) -> None:
        self._read.clear()


class Streams:
    """Which samples a virtual worker trains in a step, and the batches themselves. For the training thread."""

    name = "shards"
    slots = 0
    reads_any = False  # a shard would have to be read from its beginning
    steps_per_epoch: int | None = None  # nobody knows, before the end of an epoch

    def __init__(self, shards: Shards, rules: Rules, source: Source, device: torch.device, updates: int = 1) -> None:
        """updates: that are made from each batch."""
        self.virtual_workers = rules.virtual_workers
        self.batch_size = rules.batch_size
        self.samples_per_step = rules.virtual_workers * rules.batch_size
        self._rules = rules
        self._source = source
        self._device = device
        self._updates = updates
        self._hand_out = HandOut(rules, shards.names)
        self._hosted = range(0)
        self._end: int | None = None
        self._epochs = 0
        self._last: Any = None
        self._asked: dict[tuple[int, int], StreamRequest] = {}  # by number and virtual worker: under way
        self._stock: dict[tuple[int, int], Reading] = {}  # read, and not given away yet
        self._firsts: dict[tuple[int, int], Reading] = {}  # what an epoch begins with, by epoch and virtual worker
        self._marks: dict[int, Mark] = {}  # by shard: where it can be opened, as all workers know

    # -- which samples

    @property
    def next_epoch(self) -> int:
        """That of the step to come."""
        return self._hand_out.epoch

    def total_steps(self, epochs: int) -> int | None:
        """Of a job of so many epochs: nobody knows."""
        self._epochs = epochs
        return None

    def has_samples(self, step: int, virtual_worker: int) -> bool:
        """Whether it has any in the step to come."""
        return self._share(virtual_worker).count > 0

    def weight(self, step: int, virtual_worker: int) -> float:
        """What to multiply a mean gradient by, so that the mean over all N virtual workers is that over the step's samples."""
        return weights(share.count for share in self._hand_out.shares)[virtual_worker]

    def _share(self, virtual_worker: int) -> Share:
        return self._hand_out.shares[virtual_worker]

    # -- reading

    def assign(self, step: int, hosted: range, end: int | None) -> None:
        """From `step` on the virtual workers `hosted` are read, until step `end`."""
        self._hosted, self._end = hosted, end
        self._stock = {key: found for key, found in self._stock.items() if key[1] in hosted}
        self._firsts = {key: found for key, found in self._firsts.items() if key[1] in hosted}
        self._asked = {key: request for key, request in self._asked.items() if key[1] in hosted}
        self._source.keep_only(hosted)

    def begin(self, step: int) -> None:
        """`step` is to come: read what follows it, and that one, too, where nobody has. Raises what reading raises."""
        if not self._hosted:
            return
        number = step // self._updates
        if not self._hand_out.begun:
            assert len(self._hosted) == self.virtual_workers, "only one worker holds the state that a job begins with"
            for virtual_worker in self._hosted:
                self._ask(self._hand_out.stand, number, virtual_worker)
            self._hand_out.first(self._ends(number))
        following = self._hand_out.following
        if following.epoch >= self._epochs or self._is_past_end(number + 1):
            return
        for virtual_worker in self._hosted:
            self._ask(following, number + 1, virtual_worker)
        if self._source.reads_at_once:
            self._look_into_next_epoch(number + 1)

    def batch(self, step: int, virtual_worker: int) -> Any:
        """The micro-batch, on the device. The caller seeds the generators afterwards: reading draws from them."""
        share, number = self._share(virtual_worker), step // self._updates
        found = self._stock.pop((number, virtual_worker), None)
        if found is None or found.epoch != self.next_epoch or share.stream != virtual_worker:
            request = self._request(self._hand_out.stand, number, virtual_worker, share)
            self._source.ask(request)
            found = self._source.get(request)
        elif found.pieces != share.pieces:
            shard = next(piece for piece in found.pieces if piece not in share.pieces).partition.shard
            raise UserError(
                f"shard {self._hand_out.names[shard]} has more samples than when it was read before: it must give the "
                "same samples in the same order each time it is opened"
            )
        self._last = move_to(found.batch, self._device)
        return self._last

    def again(self, step: int) -> Any:
        """The last batch that was trained here, since another's may be long to read; or that of virtual worker 0."""
        return self.batch(step, 0) if self._last is None else self._last

    def elsewhere(self, step: int, virtual_worker: int) -> Any:
        """Nobody asks for that, as `reads_any` says."""
        raise AssertionError("shards are read by the workers that host their virtual workers")

    def example(self, step: int) -> Any:
        """The last batch that was trained here, or the first samples of the shards, which are quick to read: for those of `step`
        a shard would have to be read from its beginning."""
        if self._last is None:
            request = StreamRequest(
                number=step // self._updates,
                virtual_worker=self.virtual_workers,  # of none that exists: the streams of those stay where they are
                epoch=0,
                part=None,
                waiting=tuple(range(len(self._hand_out.names))),
                pieces=None,
                size=self.batch_size,
                seed=self._rules.seed,
            )
            self._source.ask(request)
            self._last = move_to(self._source.get(request).batch, self._device)
            self._source.keep_only(self._hosted)
        return self._last

    def applied(self, step: int) -> None:
        """The step in progress has been applied."""
        if (step + 1) % self._updates:
            return
        number = step // self._updates
        self._hand_out.applied()
        stand = self._hand_out.stand
        if stand.epoch >= self._epochs or self._is_past_end(number + 1):
            self._hand_out.begun = False  # nobody has looked ahead; but the job may be given more epochs or steps
        live = {(stand.epoch, part.shard) for part in stand.parts if part is not None}
        self._marks = {shard: mark for shard, mark in self._marks.items() if (mark.epoch, shard) in live}
        self._stock = {key: found for key, found in self._stock.items() if key[0] > number}
        self._firsts = {key: found for key, found in self._firsts.items() if key[0] > stand.epoch}
        self._asked = {key: request for key, request in self._asked.items() if key[0] > number}

    def close(self) -> None:
        self._source.close()

    def _is_past_end(self, number: int) -> bool:
        return self._end is not None and number * self._updates >= self._end

    def _ask(self, stand: Stand, number: int, virtual_worker: int) -> None:
        key = (number, virtual_worker)
        if key not in self._stock and key not in self._asked:
            self._asked[key] = self._request(stand, number, virtual_worker)
            self._source.ask(self._asked[key])

    def _request(self, stand: Stand, number: int, virtual_worker: int, share: Share | None = None) -> StreamRequest:
        n = self.virtual_workers
        return StreamRequest(
            number=number,
            virtual_worker=virtual_worker,
            epoch=stand.epoch,
            part=stand.parts[virtual_worker],
            waiting=stand.waiting[virtual_worker::n] if share is None else (),
            pieces=share.pieces if share is not None else None,
            size=self.batch_size,
            seed=self._rules.seed,
            marks=self._marks_for(stand.parts[virtual_worker], share),
            wants_mark=number % MARK_STEPS == 0,
        )

    def _marks_for(self, part: Partition | None, share: Share | None) -> tuple[Mark, ...]:
        pieces = share.pieces if share is not None else ()
        shards = {each.shard for each in (part, *(piece.partition for piece in pieces)) if each is not None}
        return tuple(self._marks[shard] for shard in sorted(shards & self._marks.keys()))

    def _ends(self, number: int) -> dict[int, int]:
        """The lengths of shards whose ends the batches of this number meet, all of which have been asked for."""
        for key in [key for key in self._asked if key[0] == number]:
            self._stock[key] = self._source.get(self._asked.pop(key))
        return {shard: n for key, found in self._stock.items() if key[0] == number for shard, n in found.ended.items()}

    def _look_into_next_epoch(self, following: int) -> None:
        """Streams that have no batch of number `following` read what the next epoch begins with, for its shards' ends."""
        self._ends(following)
        for virtual_worker in self._hosted:
            reading = self._stock.get((following, virtual_worker))
            if reading is None:
                continue
            stand = self._hand_out.next_first(virtual_worker, empty=not reading.pieces)
            key = (self.next_epoch + 1, virtual_worker)
            if stand is not None and stand.epoch < self._epochs and key not in self._firsts:
                request = replace(self._request(stand, following, virtual_worker), peeks=True)
                self._source.ask(request)
                self._firsts[key] = self._source.get(request)

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        return ()

    def wants(self, part: Part) -> bool:
        news, marks = self._news(part)
        return bool(news or marks)

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        return False

    def letter(self, part: Part) -> Any:
        news, marks = self._news(part)
        return {"lengths": news, "marks": [_plain(mark, self._hand_out.names) for mark in marks]}

    def read(self, part: Part, letters: Sequence[Any]) -> None:
        for letter in letters:
            if letter is not None:
                for epoch, lengths in letter["lengths"].items():
                    self._hand_out.learn(lengths, epoch)
                self._marks.update(
                    {shard: Mark(epoch, shard, at, state) for epoch, shard, at, state in letter["marks"]}
                )

    def _news(self, part: Part) -> tuple[dict[int, dict[int, int]], list[Mark]]:
        """Lengths that the others may not know, by epoch, and marks that they do not."""
        if part.joins or (part.step + 1) % self._updates:
            return {}, []
        hand_out, following = self._hand_out, part.step // self._updates + 1
        ends = {hand_out.following.epoch: self._ends(following)}
        self._look_into_next_epoch(following)
        for (epoch, _), reading in self._firsts.items():
            ends.setdefault(epoch, {}).update(reading.ended)
        news = {epoch: unknown for epoch, met in ends.items() if (unknown := hand_out.unknown(met, epoch))}
        return news, [
            found.mark for key, found in self._stock.items() if key[0] == following and found.mark is not None
        ]

    # -- as it travels with the state

    def state(self) -> dict[str, Any]:
        marks = [pack(_plain(mark, self._hand_out.names), "the position of a shard") for mark in self._marks.values()]
        return {**self._hand_out.state(), "marks": marks}

    def load(self, state: Mapping[str, Any]) -> None:
        """Raises UserError if the state is that of other data."""
        self._hand_out.load(state)
        marks = (Mark(*unpack(mark)) for mark in state["marks"])
        self._marks = {mark.shard: mark for mark in marks}


def _plain(mark: Mark, names: Sequence[str]) -> list[Any]:
    """As it is told. Raises UserError if a shard's state is nothing that can be."""
    pack(mark.state, f"state_dict() of shard {names[mark.shard]}")
    return [mark.epoch, mark.shard, mark.at, mark.state]
