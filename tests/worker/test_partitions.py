"""Shards read in sequence: each sample once per epoch, in the same order through any history of joins, losses and restarts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.errors import PeerError, UserError
from elasticd.worker.data.partitions import HandOut, Partition, Rules, Stand, weights
from elasticd.worker.hosting import assign

Trained = dict[tuple[int, int], list[tuple[int, int]]]  # by step and virtual worker: shard, sample
HISTORIES = 1200


@dataclass
class Job:
    """Shards with lengths that are unknown until their ends are read."""

    lengths: list[int]
    rules: Rules
    epochs: int = 2

    def length(self, shard: int, epoch: int) -> int:
        """Length of a shard; where shards are volatile, lengths change places from epoch to epoch."""
        return self.lengths[(shard + epoch) % len(self.lengths) if self.rules.volatile else shard]

    def hand_out(self) -> HandOut:
        return HandOut(self.rules, tuple(f"shard-{number}" for number in range(len(self.lengths))))


@dataclass
class Worker:
    """A worker that reads for its virtual workers, and knows only its readings and received messages."""

    job: Job
    hand_out: HandOut
    met: dict[int, dict[int, int]] = field(default_factory=dict)  # lengths found in this step, by epoch

    def reads(self, stand: Stand, stream: int) -> list[tuple[int, int]]:
        """Read as a reader does: until the batch is full or nothing is left."""
        batch: list[tuple[int, int]] = []
        for partition in self.job.rules.reads(stand, stream):
            length = self.job.length(partition.shard, stand.epoch)
            for number in range(partition.first, 10**9, partition.stride):
                if len(batch) == self.job.rules.batch_size:
                    return batch
                if number >= length:
                    self.met.setdefault(stand.epoch, {})[partition.shard] = length
                    break
                batch.append((partition.shard, number))
        return batch

    def looks_ahead(self, stream: int) -> None:
        """Read the stream's batch of the step after the next."""
        batch = self.reads(self.hand_out.following, stream)
        stand = self.hand_out.next_first(stream, empty=not batch)
        if stand is not None:
            self.reads(stand, stream)

    def news(self) -> list[tuple[dict[int, int], int]]:
        return [(unknown, epoch) for epoch, met in self.met.items() if (unknown := self.hand_out.unknown(met, epoch))]


def begin(job: Job) -> Worker:
    """The first worker, which has read the first step."""
    worker = Worker(job, job.hand_out())
    for stream in range(job.rules.virtual_workers):
        worker.reads(worker.hand_out.stand, stream)
    worker.hand_out.first(worker.met.get(0, {}))
    return worker


def train(job: Job, chance: random.Random | None) -> tuple[Trained, dict[int, int]]:
    """Trained samples by step, and the epoch of each step. With `chance` through a history, else by one worker."""
    n = job.rules.virtual_workers
    workers = [begin(job)]
    saved = workers[0].hand_out.state(), 0
    trained: Trained = {}
    epochs: dict[int, int] = {}
    step = 0
    while workers[0].hand_out.epoch < job.epochs:
        if chance is not None:
            workers, (state, step), saved = happen(job, workers, step, saved, chance)
            assert state == workers[0].hand_out.state()
        ranges = assign(n, [True] * len(workers))
        payloads: list[tuple[dict[int, int], int]] = []
        now: Trained = {}
        for worker, hosted in zip(workers, ranges, strict=True):
            worker.met = {}
            shares = worker.hand_out.shares
            for v in hosted:
                worker.looks_ahead(v)
                now[step, v] = [
                    (piece.partition.shard, piece.partition.first + i * piece.partition.stride)
                    for piece in shares[v].pieces
                    for i in range(piece.count)
                ]
            payloads += worker.news()
        if chance is not None and chance.random() < 0.1:
            continue  # a collective has failed: the step is not applied, and repeated
        trained.update(now)
        epochs[step] = workers[0].hand_out.epoch
        for worker in workers:
            for payload in payloads:
                worker.hand_out.learn(*payload)
            worker.hand_out.applied()
        assert len({repr(worker.hand_out.state()) for worker in workers}) == 1
        step += 1
    return trained, epochs


Saved = tuple[dict[str, Any], int]


def happen(
    job: Job, workers: list[Worker], step: int, saved: Saved, chance: random.Random
) -> tuple[list[Worker], Saved, Saved]:
    """Before a step: workers leave or are lost, others join; now and then all are lost, and the last checkpoint is read."""
    if chance.random() < 0.2:
        saved = workers[0].hand_out.state(), step
    state, at = (workers[0].hand_out.state(), step) if chance.random() > 0.05 else saved
    survivors = (
        chance.sample(workers, chance.randint(1, len(workers))) if at == step and chance.random() < 0.4 else workers
    )
    if at != step:
        survivors = []
    wanted = chance.randint(1, job.rules.virtual_workers) if chance.random() < 0.4 else max(1, len(survivors))
    joiners = [Worker(job, job.hand_out()) for _ in range(wanted - len(survivors))]
    for joiner in joiners:
        joiner.hand_out.load(state)
    return [*survivors, *joiners][: job.rules.virtual_workers], (state, at), saved


def some_job(chance: random.Random, volatile: bool = False) -> Job:
    longest = chance.choice([1, 5, 40])
    lengths = [chance.choice([0, chance.randint(0, longest)]) for _ in range(chance.randint(1, 12))]
    if not any(lengths):
        lengths[0] = 1
    n = len(lengths) if volatile else chance.randint(1, 8)
    shuffle = not volatile and chance.random() < 0.8
    rules = Rules(len(lengths), n, chance.randint(1, 6), chance.randint(0, 2**40), shuffle, volatile)
    return Job(lengths, rules)


@pytest.mark.parametrize("part", range(5))
def test_any_history_trains_the_same_samples_in_the_same_steps_and_each_once_an_epoch(part: int) -> None:
    for seed in range(part * HISTORIES // 5, (part + 1) * HISTORIES // 5):
        chance = random.Random(seed)
        job = some_job(chance, volatile=seed % 3 == 0)
        trained, epochs = train(job, None)
        assert train(job, chance) == (trained, epochs), seed
        for epoch in range(job.epochs):
            seen = Counter(sample for (step, _), batch in trained.items() if epochs[step] == epoch for sample in batch)
            shards = range(len(job.lengths))
            assert seen == Counter((shard, i) for shard in shards for i in range(job.length(shard, epoch))), seed


@pytest.mark.parametrize("seed", range(100))
def test_virtual_workers_without_a_sample_are_the_last_and_no_step_is_empty(seed: int) -> None:
    job = some_job(random.Random(seed))
    trained, epochs = train(job, None)
    for step in epochs:
        counts = [len(trained[step, v]) for v in range(job.rules.virtual_workers)]
        assert counts[0] > 0
        assert [count > 0 for count in counts] == sorted((count > 0 for count in counts), reverse=True)


def test_steps_are_full_but_for_the_last_ones_of_an_epoch() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        job = Job([chance.randint(10, 120) for _ in range(20)], Rules(20, 4, 5, seed), epochs=1)
        trained, epochs = train(job, None)
        sizes = [sum(len(trained[step, v]) for v in range(4)) for step in epochs]
        possible = sum(job.lengths) // 20
        assert sizes[: possible // 2] == [20] * (possible // 2)
        assert sum(size < 20 for size in sizes) <= 8
        assert len(sizes) <= possible + 3


def test_one_shard_is_read_by_all_virtual_workers_each_every_fourth_sample() -> None:
    trained, _ = train(Job([16], Rules(1, 4, 2, 0), epochs=1), None)
    assert [trained[0, v] for v in range(4)] == [[(0, v), (0, v + 4)] for v in range(4)]


def test_the_second_epoch_has_nothing_to_tell() -> None:
    job = Job([7, 9, 2], Rules(3, 2, 2, 5), epochs=3)
    worker = begin(job)
    told: list[tuple[int, list[tuple[dict[int, int], int]]]] = []
    while worker.hand_out.epoch < 3:
        worker.met = {}
        for stream in range(2):
            worker.looks_ahead(stream)
        told.append((worker.hand_out.epoch, worker.news()))
        for payload in worker.news():
            worker.hand_out.learn(*payload)
        worker.hand_out.applied()
    assert any(payload for epoch, payload in told if epoch == 0)
    assert not any(payload for epoch, payload in told if epoch > 0)


def test_epochs_differ_in_the_order_of_shards_and_an_order_never_changes() -> None:
    rules = Rules(6, 2, 3, seed=7)
    assert rules.begin(0, {}) == Stand(0, (Partition(5), Partition(1)), (4, 0, 3, 2))
    assert rules.begin(1, {}).waiting != rules.begin(0, {}).waiting
    assert Rules(4, 2, 3, seed=7, shuffle=False).begin(9, {}) == Stand(9, (Partition(0), Partition(1)), (2, 3))


def test_weights_give_the_mean_over_samples() -> None:
    assert weights([4, 4, 4]) == [1.0, 1.0, 1.0]
    assert weights([3, 1, 0]) == [2.25, 0.75, 0.0]


def test_a_shard_that_gives_another_number_of_samples_is_named() -> None:
    hand_out = Job([3, 4], Rules(2, 1, 2, 0)).hand_out()
    hand_out.first({0: 3})
    with pytest.raises(UserError, match=r"shard shard-0 had 3 samples when it was read before, and has 2 now"):
        hand_out.unknown({0: 2}, 0)
    hand_out.learn({1: 4}, 1)
    with pytest.raises(UserError, match=r"shard-1 had 4 samples"):
        hand_out.learn({1: 5}, 0)


def test_shards_without_a_sample_are_refused() -> None:
    with pytest.raises(UserError, match="none of the 2 shards has a sample"):
        Job([0, 0], Rules(2, 1, 2, 0)).hand_out().first({0: 0, 1: 0})


def test_a_state_of_other_shards_is_refused() -> None:
    hand_out = Job([3, 4], Rules(2, 1, 2, 0)).hand_out()
    with pytest.raises(UserError, match="another dataset"):
        Job([3, 4, 5], Rules(3, 1, 2, 0)).hand_out().load(hand_out.state())
    with pytest.raises(PeerError, match="not where a job is"):
        Job([3, 4], Rules(2, 1, 2, 0)).hand_out().load({**hand_out.state(), "parts": 3})


@given(data=st.data())
def test_a_state_comes_back_as_it_was(data: st.DataObject) -> None:
    job = some_job(random.Random(data.draw(st.integers(0, 10**6))))
    worker = begin(job)
    other = job.hand_out()
    other.load(worker.hand_out.state())
    assert other.state() == worker.hand_out.state()
    assert other.shares == worker.hand_out.shares
