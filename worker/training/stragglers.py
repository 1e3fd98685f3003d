"""Workers that compute more slowly than the others, and how many virtual workers each should host (EDL 5.4). Pure.

A synchronous step waits for its slowest worker. EDL calls a worker a straggler if it is slower than the others in, say,
ten consecutive steps, and removes it. Two equal GPUs toss a coin in each step, so that rule removes a sound one in
every two thousand steps. Here a straggler is found by a test with a known rate of false alarms, and keeps as much work
as it can do: virtual workers move away from it (EasyScale 3.4: the mapping follows the GPUs' speeds), which changes no
bit and moves no process.

*What is measured.* The word of each step (`pace`) brings two times of each worker for the step before: that of its own
part, and that of its wait until the others' parts had come. A worker's own part tells how fast it computes. The
shortest wait of all is the time of the exchange itself, since the last worker waits for nobody: a slow link lengthens
that, and no worker's own part.

*Samples.* Steps within `SAMPLE_S` are added up to one sample, so that a moment's noise makes one sample, not a hundred.
Left out are steps in which a worker computes something else as well (a joiner, a cross-check, a short step), and the
first ones after a change of hosting. A worker's *pace* is the time of its part divided by the number of its virtual
workers, and by its *factor*: how much slower than usual it is already known to be. Its *reference* is the median pace
of the other workers.

*The test* (Page's CUSUM for a coin; Lorden 1971). In each sample it is noted whether the worker's pace is more than
`MARGIN` times its reference, and its part as a whole more than `MARGIN` times the others': a worker that hosts fewer
virtual workers seems slow as long as the fixed part of a step is unknown, and no step waits for it. (Likewise one that
hosts more seems fast; one that hosts as many as the others may have nothing to get back, and its pace alone counts.)
The hypothesis is
that this has a chance of at most one half, whatever has happened before: the median of the ratio is at most `MARGIN`. The
shape of the noise does not matter. A score gains `GAIN_HIT`
with a hit, loses `LOSS_MISS` otherwise, and never falls below zero. Both are log-likelihood ratios of a coin of chance
0.95 to a fair one, so under the hypothesis the expected factor exp(change) of the score is at most 1. With R(n) = (1 +
R(n-1)) * exp(change) one has exp(score) <= R(n), and R(n) - n is a supermartingale; so the expected number of samples
until the score reaches `ln(1 / FALSE_ALARMS)` is at least 1 / `FALSE_ALARMS`. A slow worker is found after 22 samples
in a row. The same test in the other direction finds workers that have become faster.

*The answer.* A found worker's factor becomes the median ratio of the samples of the alarm. The leader asks for the
hosting that is fastest under all factors (`hosting.balanced`), if a step is to become shorter by `WORTH`. It is
committed in band, like a generation. A recovered worker's factor becomes 1 again, and it gets its virtual workers back.
A worker that becomes slow again after a recovery has to prove the next one for longer (`RELAPSES`), so that no hosting
flaps.

*Where that is not enough* (EDL removes the worker): a slow worker keeps at least one virtual worker. So two more tests of
the same kind follow, of the samples since the hosting last changed. Are steps more than `WORTH` times as long as they
would be with a sound worker in its place, and as they would be without it? The times of the other workers in the same
sample tell both, for the hosting that would follow, so that noise of the others is on both sides. The rest of a step (the
exchange, the update) is assumed to stay as it is. The leader reports a proved answer (`Straggler.kept`, `without`), and
the controller acts (`controller.reconcile.slow_gpus`). Of several slow workers the slower ones count as gone too, since
one of two equally slow workers alone changes nothing.

*Part of a step is fixed* (zeroing gradients, a reader's start), however many virtual workers a worker hosts. How much
follows from the times before and after a change of hosting; without it a straggler with few virtual workers would look
ever slower. It is negative where the first virtual worker of a step takes less than the others (its samples have been
read ahead, while the worker waited).

*Factors are relative*: only their ratios are measured. At least one worker is therefore held to be as fast as usual.
Otherwise each correction could raise all of them a little, without a bound.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add
from statistics import median

from ...protocol.limits import MAX_PACES, MAX_STRAGGLERS, STRAGGLER_FALSE_ALARMS
from ...protocol.model import Roster, Straggler, WorkerId
from ..hosting import assign, balanced

SAMPLE_S = 0.05
SAMPLES_KEPT = 64
UNSETTLED_STEPS = 2  # of a new hosting: words bring the times of the step before, and the first step is slower
MARGIN = 1.2
FALSE_ALARMS = STRAGGLER_FALSE_ALARMS  # per sample, worker and direction (or answer), at the most
CHANCE_IF_SLOW = 0.95
GAIN_HIT = math.log(CHANCE_IF_SLOW / 0.5)
LOSS_MISS = -math.log((1.0 - CHANCE_IF_SLOW) / 0.5)
WORTH = 1.05  # how many times shorter a step has to become
RELAPSES = 15  # that count
FIXED_SAMPLES = 16  # before and after a change of hosting, from which the fixed part of a step follows
LEAST_FIXED, MOST_FIXED = 0.5, 16.0  # virtual workers' times; less than the least changes no hosting
LOWEST_FIXED = -0.95  # even the first virtual worker of a step takes some time

NOT_MEASURED = -1  # in place of a worker's times of a step that does not count
WAIT_BITS = 32
LONGEST_US = (1 << 31) - 1


def packed(own_s: float, waited_s: float) -> int:
    """Return a worker's times of one step as one integer of the word. Of several, sums are the packed sums."""
    own_us, waited_us = (min(max(int(time_s * 1e6), 0), LONGEST_US) for time_s in (own_s, waited_s))
    return own_us << WAIT_BITS | waited_us


class Cusum:
    """The score of one worker in one direction. `reached` says that it is proved."""

    def __init__(self, false_alarms: float = FALSE_ALARMS) -> None:
        self._threshold = -math.log(false_alarms)
        self._score = 0.0
        self.samples = 0  # since the score was 0

    def add(self, hit: bool) -> None:
        score = self._score + (GAIN_HIT if hit else -LOSS_MISS)
        self._score, self.samples = (score, self.samples + 1) if score > 0.0 else (0.0, 0)

    def reached(self, times: int = 1) -> bool:
        """Return whether the score has come to `times` times its threshold."""
        return self._score >= self._threshold * times

    def reset(self) -> None:
        self._score, self.samples = 0.0, 0


@dataclass
class _Worker:
    """Knowledge of one worker, kept as long as it is a member."""

    slower: Cusum
    faster: Cusum
    factor: float = 1.0  # how many times longer it takes than usual
    expected: float = 1.0  # the factor of its GPU type, as its roster says
    since: float | None = None  # when it was found to be slow (Unix time, s); None: it is not
    samples: int = 0  # of the alarm
    has_recovered: bool = False
    relapses: int = 0
    costs: Cusum = field(default_factory=Cusum)  # whether steps would be shorter with a sound worker in its place
    harms: Cusum = field(default_factory=Cusum)  # whether they would be shorter without it
    kept: float = 1.0  # `Straggler.kept`, without what slower workers cost
    without: float = 1.0

    def forget_answers(self) -> None:
        self.costs.reset()
        self.harms.reset()
        self.kept = self.without = 1.0


class Stragglers:
    """The paces of a generation's workers, as one of them has heard of them. All members keep them; the leader decides."""

    def __init__(self, virtual_workers: int, acts: bool = True) -> None:
        """acts: the hosting may follow the paces. Where the order of sums depends on the hosting, it must not."""
        self._virtual_workers = virtual_workers
        self._acts = acts
        self._workers: dict[WorkerId, _Worker] = {}  # of the present generation, by rank
        self._ids: tuple[WorkerId, ...] = ()
        self._ranges: tuple[range, ...] = ()
        self._as_many: list[bool] = []  # by rank: it hosts as many virtual workers as the others do in the median
        self._fixed = 0.0  # part of a step that does not depend on the hosting, in virtual workers' times
        self._before: tuple[tuple[range, ...], list[float]] | None = None  # hosting and times before the last change
        self.wanted: tuple[int, ...] = ()  # hosting that the leader should ask for; empty: the present one
        self.news = ""  # a sentence for people about the last change; its reader clears it
        self._sums: list[int] = []  # of the sample that is not complete
        self._steps = 0
        self._sampled_at: float | None = None  # the end of the last sample
        # Own times, the exchange's and the whole step's, in us.
        self._samples: deque[tuple[list[float], float, float]] = deque(maxlen=SAMPLES_KEPT)
        self._unsettled = 0

    def enter(self, roster: Roster) -> None:
        """Begin a generation. Factors of workers that stay are kept, their scores are not."""
        known, self._ids = self._workers, roster.workers
        self._workers = {
            member.worker: known.get(member.worker) or _Worker(Cusum(), Cusum(), factor=member.pace)
            for member in roster.members
        }
        for member in roster.members:
            self._workers[member.worker].expected = member.pace
        self._reset()
        self._ranges, self._before, self.wanted = (), None, ()

    def hosts(self, ranges: tuple[range, ...]) -> None:
        """Take note of the hosting of a step that all members compute."""
        if ranges is self._ranges or ranges == self._ranges:
            return
        settled = len(self._samples) >= FIXED_SAMPLES
        self._before = (self._ranges, self._own_times()) if settled and self._ranges else None
        self._ranges = ranges
        sizes = list(map(len, ranges))
        self._as_many = [size == others for size, others in zip(sizes, _of_others(sizes), strict=True)]
        self._samples.clear()
        self._begin_sample()
        self._forget_answers()
        self._unsettled = UNSETTLED_STEPS
        self._decide()

    def heard(self, now: float, times: Sequence[int]) -> None:
        """Take the times (`packed`) of all ranks, which have come with the word of a step; none of one that does not count."""
        if self._unsettled:
            self._unsettled -= 1
            return
        if len(times) != len(self._ids) or min(times) < 0:
            return
        if self._sampled_at is None:
            self._sampled_at = now
            return
        self._sums = list(map(add, self._sums, times)) if self._sums else list(times)
        self._steps += 1
        if now - self._sampled_at >= SAMPLE_S:
            self._sampled(now)

    def slow(self) -> tuple[Straggler, ...]:
        """Return the slow workers, the slowest first."""
        hosted = [len(each) for each in self._ranges] or [0] * len(self._ids)
        slowdowns, found = self._slowdowns(), list[Straggler]()
        kept, without = 1.0, 1.0
        for rank in reversed(self._slow_ranks()):
            name = self._ids[rank]
            worker = self._workers[name]
            kept, without = min(kept, worker.kept), max(without, worker.without)
            assert worker.since is not None
            found.append(
                Straggler(
                    worker=name,
                    slowdown=slowdowns[rank],
                    since_s=worker.since,
                    samples=worker.samples,
                    hosts=hosted[rank],
                    kept=kept,
                    without=without,
                )
            )
        return tuple(reversed(found))[:MAX_STRAGGLERS]

    @property
    def paces(self) -> dict[WorkerId, float]:
        """Factors of members that are not as fast as usual."""
        found = {name: worker.factor for name, worker in self._workers.items() if worker.factor != 1.0}
        return found if len(found) <= MAX_PACES else {}

    @property
    def exchange_s(self) -> float:
        """Median time of a step's exchange, without waiting for slower workers; 0: unknown."""
        return median(exchange for _, exchange, _ in self._samples) * 1e-6 if self._samples else 0.0

    # -- one sample

    def _begin_sample(self) -> None:
        self._sums, self._steps, self._sampled_at = [], 0, None

    def _reset(self) -> None:
        self._samples.clear()
        self._begin_sample()
        self._forget_answers()
        for worker in self._workers.values():
            worker.slower.reset()
            worker.faster.reset()

    def _forget_answers(self) -> None:
        for worker in self._workers.values():
            worker.forget_answers()

    def _sampled(self, now: float) -> None:
        steps, began = self._steps, self._sampled_at
        assert began is not None
        took = (now - began) * 1e6 / steps
        own = [(each >> WAIT_BITS) / steps for each in self._sums]
        exchange = min(each & ((1 << WAIT_BITS) - 1) for each in self._sums) / steps
        self._samples.append((own, exchange, took))
        self._sums, self._steps, self._sampled_at = [], 0, now
        if not all(self._ranges):
            return
        if self._before is not None and len(self._samples) == FIXED_SAMPLES:
            self._learn_fixed(now, *self._before)
            self._before = None
        paces = self._paces(own)
        references, parts = _of_others(paces), _of_others(own)
        alarm = False
        for worker, pace, reference, part, others, as_many in zip(
            self._workers.values(), paces, references, own, parts, self._as_many, strict=True
        ):
            worker.slower.add(pace > MARGIN * reference and part > MARGIN * others)
            worker.faster.add(MARGIN * pace < reference and (as_many or MARGIN * part < others))
            alarm |= worker.slower.reached() or worker.faster.reached(1 + worker.relapses)
        if alarm:
            self._correct(now)
        elif not self.wanted and self._before is None:
            self._weigh(own, took)

    def _paces(self, own: Sequence[float]) -> list[float]:
        """Return each worker's time per virtual worker, as it would be if all were as fast as usual."""
        return [
            time / ((self._fixed + len(hosted)) * worker.factor)
            for time, hosted, worker in zip(own, self._ranges, self._workers.values(), strict=True)
        ]

    def _own_times(self) -> list[float]:
        last = list(self._samples)[-FIXED_SAMPLES:]
        return [median(times) for times in zip(*(own for own, _, _ in last), strict=True)]

    # -- an alarm

    def _correct(self, now: float) -> None:
        """Change the factors of the workers for which the test has ended, one after the other.

        With few workers a change of one moves the references of the others, whose alarms may then have had no other reason. First
        come those whose factor was not 1, then the slower ones.
        """
        alarmed = [
            (name, worker)
            for name, worker in self._workers.items()
            if worker.slower.reached() or worker.faster.reached(1 + worker.relapses)
        ]
        alarmed.sort(key=lambda each: (-abs(math.log(each[1].factor)), not each[1].slower.reached()))
        for name, worker in alarmed:
            rank = self._ids.index(name)
            samples = min(max(worker.slower.samples, worker.faster.samples, 1), len(self._samples))
            ratio = self._ratio(rank, samples)
            worker.slower.reset()
            worker.faster.reset()
            if 1.0 / MARGIN < ratio < MARGIN:
                continue
            factor = worker.factor * ratio
            worker.factor = factor if not 1.0 / MARGIN < factor < MARGIN else 1.0
            worker.samples = samples
        self._forget_answers()
        self._judge(now)
        self._decide()

    def _anchor(self) -> None:
        """Divide all factors by one number if all workers would be slower, or all faster, than their GPU types."""
        ratios = [worker.factor / worker.expected for worker in self._workers.values()]
        common = min(ratios) if min(ratios) > 1.0 else max(ratios)
        if min(ratios) > 1.0 or max(ratios) < 1.0:
            for worker in self._workers.values():
                worker.factor /= common

    def _ratio(self, rank: int, samples: int) -> float:
        """Return the median of a worker's pace to its reference, over the last samples, under the present factors."""
        found = []
        for own, _, _ in list(self._samples)[-samples:]:
            paces = self._paces(own)
            reference = _of_others(paces)[rank]
            if reference > 0.0:
                found.append(paces[rank] / reference)
        return median(found) if found else 1.0

    def _slowdowns(self) -> list[float]:
        """Return by rank how many times longer a worker takes than the others, beyond what their GPU types explain."""
        factors = [worker.factor / worker.expected for worker in self._workers.values()]
        return [factor / others for factor, others in zip(factors, _of_others(factors), strict=True)]

    def _judge(self, now: float, alarm: bool = True) -> None:
        """Note the workers that have become slow, and those that have recovered, after a change of factors. alarm: the test
        has ended; otherwise no worker becomes slow.
        """
        self._anchor()
        for (name, worker), slowdown in zip(self._workers.items(), self._slowdowns(), strict=True):
            slow = slowdown >= MARGIN
            if slow == (worker.since is not None) or (slow and not alarm):
                continue
            if slow:
                worker.since = now
                worker.relapses = min(worker.relapses + worker.has_recovered, RELAPSES)
                self.news = (
                    f"{name} is slow: it takes {slowdown:.1f} times as long as the others for a virtual worker "
                    f"(median of {worker.samples} samples)"
                )
            else:
                worker.since, worker.has_recovered = None, True
                self.news = f"{name} is as fast as the others again (median of {worker.samples} samples)"

    # -- where another hosting is not enough

    def _slow_ranks(self) -> list[int]:
        """Return the ranks of the slow workers, the slowest first."""
        slowdowns = self._slowdowns()
        found = [rank for rank, worker in enumerate(self._workers.values()) if worker.since is not None]
        return sorted(found, key=lambda rank: -slowdowns[rank])

    def _weigh(self, own: Sequence[float], took: float) -> None:
        """Test with one sample whether steps would be shorter with sound workers in place of the slow ones, or without them.

        own: times of the parts by rank; took: time of a step (us).
        """
        slow = self._slow_ranks()[: len(own) - 1]  # of a roster of slow workers alone, one stays
        for count, rank in enumerate(slow, 1):
            worker, away = self._workers[self._ids[rank]], slow[:count]
            sound, without = self._would_take(own, took, away)
            worker.costs.add(took > WORTH * sound)
            worker.harms.add(took > WORTH * without)
            if worker.kept == 1.0 and worker.costs.reached():
                worker.kept = 1.0 / self._gains(away, worker.costs.samples)[0]
            if worker.without == 1.0 and worker.harms.reached():
                worker.without = self._gains(away, worker.harms.samples)[1]

    def _gains(self, away: Sequence[int], samples: int) -> tuple[float, float]:
        """Return how many times shorter steps would be with sound workers in place of the ranks `away`, and without them."""
        ratios = []
        for own, _, took in list(self._samples)[-samples:]:
            sound, without = self._would_take(own, took, away)
            ratios.append((took / sound, took / without))
        return median(ratio for ratio, _ in ratios), median(ratio for _, ratio in ratios)

    def _would_take(self, own: Sequence[float], took: float, away: Sequence[int]) -> tuple[float, float]:
        """Return the time of a step of `took` us with sound workers in place of the ranks `away`, and without them (us)."""
        workers = list(self._workers.values())
        each = [time / (self._fixed + len(hosted)) for time, hosted in zip(own, self._ranges, strict=True)]
        stay = [rank for rank in range(len(own)) if rank not in away]
        usual = median([each[rank] / workers[rank].factor for rank in stay])
        factors = [worker.expected if rank in away else worker.factor for rank, worker in enumerate(workers)]
        sound = [usual * workers[rank].expected if rank in away else time for rank, time in enumerate(each)]
        rest = max(took - max(own), 0.0)
        return (
            rest + self._longest(sound, factors),
            rest + self._longest([each[rank] for rank in stay], [factors[rank] for rank in stay]),
        )

    def _longest(self, each: Sequence[float], factors: Sequence[float]) -> float:
        """Return the longest part of a step of workers with these times of a virtual worker, as their factors let them host."""
        sizes = (
            balanced(self._virtual_workers, factors, self._fixed)
            if self._acts
            else [len(hosted) for hosted in assign(self._virtual_workers, [True] * len(each))]
        )
        return max(time * (self._fixed + size) for time, size in zip(each, sizes, strict=True))

    # -- the hosting

    def _decide(self) -> None:
        self.wanted = ()
        ranges = self._ranges
        if not self._acts or len(ranges) < 2 or not all(ranges):
            return
        factors = [worker.factor for worker in self._workers.values()]
        sizes = balanced(self._virtual_workers, factors, self._fixed)
        now_takes, would_take = (
            max(factor * (self._fixed + size) for factor, size in zip(factors, each, strict=True))
            for each in ([len(hosted) for hosted in ranges], sizes)
        )
        if now_takes >= WORTH * would_take:
            self.wanted = sizes

    def _learn_fixed(self, now: float, ranges: tuple[range, ...], times: Sequence[float]) -> None:
        """Learn the fixed part from workers that hosted another number of virtual workers before.

        Such a worker of the same pace has took / (fixed + before) = takes / (fixed + after). Of all workers: least squares, in
        which those with the greatest change count most.
        """
        products = squares = 0.0
        for before, after, took, takes in zip(ranges, self._ranges, times, self._own_times(), strict=True):
            change = took - takes
            products += change * (len(before) * takes - len(after) * took)
            squares += change * change
        fixed = min(products / squares, MOST_FIXED) if squares else 0.0
        self._fixed = max(fixed, LOWEST_FIXED) if abs(fixed) >= LEAST_FIXED else 0.0
        for rank, worker in enumerate(self._workers.values()):
            if worker.factor != 1.0:  # it was measured with another fixed part
                worker.factor *= self._ratio(rank, FIXED_SAMPLES)
        self._judge(now, alarm=False)
        self._decide()


def _of_others(paces: Sequence[float]) -> list[float]:
    """Return by rank the median of the other ranks' paces."""
    if len(paces) < 2:
        return list(paces)
    order = sorted(range(len(paces)), key=paces.__getitem__)
    ranked = [paces[rank] for rank in order]
    found = [0.0] * len(paces)
    others = len(paces) - 1
    low, high = (others - 1) // 2, others // 2
    for position, rank in enumerate(order):
        found[rank] = (ranked[low + (low >= position)] + ranked[high + (high >= position)]) / 2.0
    return found


def sizes_of(told: object, virtual_workers: int, workers: int) -> tuple[int, ...]:
    """Return a hosting that a leader has announced. Empty: it has announced none, or one that does not fit."""
    if not isinstance(told, list | tuple) or len(told) != workers or not all(isinstance(size, int) for size in told):
        return ()
    return tuple(told) if min(told) >= 1 and sum(told) == virtual_workers else ()
