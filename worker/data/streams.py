"""Micro-batches of shards that are read in sequence: the counterpart of `sampling` and `loading` for data with an
index.

`partitions` says which virtual worker reads which samples; `reading` reads them. This module keeps the batches that
have been read one step ahead, and sends other workers the lengths of shards that have ended there
(`inband.Participant`). So at each boundary all workers know how many samples each virtual worker has in the next step,
and whether the epoch has another step.

If a job makes several updates from one batch (`updates`), that many consecutive steps have the same batch *number*, and
the same batches. Lengths are sent in the last of these steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from ...protocol.errors import UserError
from ..inband import Part
from ..plain import pack, unpack
from .fetching import move_to
from .partitions import HandOut, Partition, Rules, Share, Stand, weights
from .reading import Mark, Reading, ShardReader, StreamRequest
from .shards import Shards

MARK_STEPS = (
    128  # steps between marks: a worker that takes over a shard reads no more than the samples since the last mark
)


class Source(Protocol):
    """Reader of shards: in this process, or in processes of its own."""

    reads_at_once: bool  # whether `ask` reads, and may raise the errors of reading

    def ask(self, request: StreamRequest) -> None:
        """Announce a request that `get` will fetch."""

    def get(self, request: StreamRequest) -> Reading:
        """Return the result of a request. Raises the errors of reading."""

    def keep_only(self, virtual_workers: range) -> None:
        """Drop the state of virtual workers other than these: other workers read them from now on."""

    def close(self) -> None:
        """End reading: no further request comes."""


class Here:
    """Source in this process, which reads in `ask`: reading draws random numbers, and may do so at that time."""

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
    """The samples of each virtual worker in a step, and the batches themselves. For the training thread."""

    name = "shards"
    slots = 0
    reads_any = False  # the batch of another worker's virtual worker would need its shard read from the beginning
    steps_per_epoch: int | None = None  # unknown before the end of an epoch

    def __init__(self, shards: Shards, rules: Rules, source: Source, device: torch.device, updates: int = 1) -> None:
        """updates: number of updates made from each batch."""
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
        self._asked: dict[tuple[int, int], StreamRequest] = {}  # by number and virtual worker: requested
        self._stock: dict[tuple[int, int], Reading] = {}  # read, and not trained yet
        self._firsts: dict[tuple[int, int], Reading] = {}  # first batches of an epoch, by epoch and virtual worker
        self._marks: dict[int, Mark] = {}  # by shard: where it can be opened; the same on all workers

    # -- the samples of a step

    @property
    def next_epoch(self) -> int:
        """Epoch of the next step."""
        return self._hand_out.epoch

    def total_steps(self, epochs: int) -> int | None:
        """Return None: the number of steps in `epochs` epochs is unknown. Keeps the number of epochs."""
        self._epochs = epochs
        return None

    def has_samples(self, step: int, virtual_worker: int) -> bool:
        """Return whether the virtual worker has samples in the next step."""
        return self._share(virtual_worker).count > 0

    def weight(self, step: int, virtual_worker: int) -> float:
        """Return the factor of a mean gradient with which the mean over N virtual workers is that over the step's
        samples.
        """
        return weights(share.count for share in self._hand_out.shares)[virtual_worker]

    def _share(self, virtual_worker: int) -> Share:
        return self._hand_out.shares[virtual_worker]

    # -- reading

    def assign(self, step: int, hosted: range, end: int | None) -> None:
        """Read for the virtual workers `hosted`, from `step` on until step `end`."""
        self._hosted, self._end = hosted, end
        self._stock = {key: found for key, found in self._stock.items() if key[1] in hosted}
        self._firsts = {key: found for key, found in self._firsts.items() if key[1] in hosted}
        self._asked = {key: request for key, request in self._asked.items() if key[1] in hosted}
        self._source.keep_only(hosted)

    def begin(self, step: int) -> None:
        """Prepare for `step`: request the batches of the following step, and those of `step` if it is the job's first.

        Raises the errors of reading.
        """
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
        """Return the micro-batch, on the device.

        Reading draws random numbers, so the caller seeds the generators afterwards.
        """
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
        """Return the last batch that was trained here, or that of virtual worker 0; another one may take long to read."""
        return self.batch(step, 0) if self._last is None else self._last

    def elsewhere(self, step: int, virtual_worker: int) -> Any:
        """Raise an error: never called, as `reads_any` is False."""
        raise AssertionError("shards are read by the workers that host their virtual workers")

    def example(self, step: int) -> Any:
        """Return the last batch that was trained here, or the first samples of the shards, which are quick to read.

        For the samples of `step` a shard would have to be read from its beginning.
        """
        if self._last is None:
            request = StreamRequest(
                number=step // self._updates,
                # a number that no virtual worker has, so that existing streams keep their positions
                virtual_worker=self.virtual_workers,
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
        """Take note that the step in progress has been applied."""
        if (step + 1) % self._updates:
            return
        number = step // self._updates
        self._hand_out.applied()
        stand = self._hand_out.stand
        if stand.epoch >= self._epochs or self._is_past_end(number + 1):
            self._hand_out.begun = False  # no worker has read ahead; but the job may get more epochs or steps
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
        """Return the lengths of shards that end in the batches of this number; all these batches have been requested."""
        for key in [key for key in self._asked if key[0] == number]:
            self._stock[key] = self._source.get(self._asked.pop(key))
        return {shard: n for key, found in self._stock.items() if key[0] == number for shard, n in found.ended.items()}

    def _look_into_next_epoch(self, following: int) -> None:
        """Read the first batch of the next epoch, to find its shards' ends, for streams without a batch `following`."""
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

    def payload(self, part: Part) -> Any:
        news, marks = self._news(part)
        return {"lengths": news, "marks": [_plain(mark, self._hand_out.names) for mark in marks]}

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        for payload in payloads:
            if payload is not None:
                for epoch, lengths in payload["lengths"].items():
                    self._hand_out.learn(lengths, epoch)
                self._marks.update(
                    {shard: Mark(epoch, shard, at, state) for epoch, shard, at, state in payload["marks"]}
                )

    def _news(self, part: Part) -> tuple[dict[int, dict[int, int]], list[Mark]]:
        """Return lengths and marks that other workers may not know; lengths by epoch."""
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

    # -- the position as part of the state

    def state(self) -> dict[str, Any]:
        marks = [pack(_plain(mark, self._hand_out.names), "the position of a shard") for mark in self._marks.values()]
        return {**self._hand_out.state(), "marks": marks}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state. Raises UserError if it is that of other data."""
        self._hand_out.load(state)
        marks = (Mark(*unpack(mark)) for mark in state["marks"])
        self._marks = {mark.shard: mark for mark in marks}


def _plain(mark: Mark, names: Sequence[str]) -> list[Any]:
    """Return a mark as it is sent. Raises UserError if a shard's state has values that cannot travel."""
    pack(mark.state, f"state_dict() of shard {names[mark.shard]}")
    return [mark.epoch, mark.shard, mark.at, mark.state]
