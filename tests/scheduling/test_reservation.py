"""Reservations: the head of the queue starts despite any stream of small gangs; others may overtake if that delays nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.model import JobId
from elasticd.scheduler.kinds import Demand
from elasticd.scheduler.pipeline import Decision, decide
from elasticd.scheduler.policies import POLICIES, RIGID
from elasticd.scheduler.reservation import Queue, reserve
from elasticd.scheduler.sets import union
from elasticd.scheduler.view import ClusterView, Gpus, ReasonCode, ServerInView, gpus_by_sort, limit_for

from .tables import job, policy, servers, table

NAMES = [kind.name for kind in POLICIES]
AFTER_S = 100.0


@dataclass
class Cluster:
    """Gangs that start when they get GPUs, and elastic jobs beside them."""

    sizes: tuple[int, ...]
    policy: str
    now: float = 0.0
    jobs: dict[str, tuple[int, int, float]] = field(default_factory=dict)  # fewest and most GPUs, submission
    elastic: set[str] = field(default_factory=set)
    each: dict[str, int] = field(default_factory=dict)  # GPUs on each server
    gangs: dict[str, Gpus] = field(default_factory=dict)  # started ones
    placed: dict[str, Gpus] = field(default_factory=dict)  # elastic jobs
    head: JobId | None = None
    decision: Decision | None = None
    view: ClusterView | None = None

    @property
    def whole(self) -> tuple[ServerInView, ...]:
        return servers(*self.sizes)

    def submit(self, name: str, low: int, high: int | None = None, each: int = 0, elastic: bool = False) -> None:
        self.jobs[name] = low, high or low, self.now
        self.each[name] = each
        if elastic:
            self.elastic.add(name)

    def end(self, name: str) -> None:
        del self.jobs[name]
        self.gangs.pop(name, None)
        self.placed.pop(name, None)

    def see(self) -> ClusterView:
        """The controller's view: without gangs that have started, and their GPUs."""
        taken = union(self.gangs.values())
        seen, outer, begin = [], [], 0
        for server in self.whole:
            kept = [at for at in range(len(server.gpus)) if not taken >> begin + at & 1]
            seen.append(server.only(kept))
            outer += [begin + at for at in kept]
            begin += len(server.gpus)
        names = [name for name in self.jobs if name not in self.gangs]
        rows = [
            job(name, low, high, submitted_s=at, share=self.placed.get(name, 0).bit_count())
            for name, (low, high, at) in ((name, self.jobs[name]) for name in names)
        ]
        inner = {
            row: sum(1 << i for i, o in enumerate(outer) if self.placed.get(n, 0) >> o & 1)
            for row, n in enumerate(names)
        }
        demands = [Demand(per_server=self.each[name]) for name in names]
        sorts = gpus_by_sort(seen)
        view = ClusterView(
            self.now,
            table(*rows, most=sum(self.sizes)),
            tuple(seen),
            {row: gpus for row, gpus in inner.items() if gpus},
            limits=tuple(limit_for(demand, sorts) for demand in demands),
            limit_of=np.arange(len(names)) if any(self.each.values()) and sorts else None,
        )
        queue = Queue(
            servers=self.whole,
            usable=(1 << sum(self.sizes)) - 1,
            busy=tuple(self.gangs.values()),
            gangs=taken,
            demands=demands,
            demand_of=np.arange(len(names)),
            stays=np.array([name not in self.elastic for name in names], dtype=bool),
            begun=frozenset(row for row, name in enumerate(names) if name in self.placed),
        )
        view, _ = reserve(view, queue, self.policy, self.policy in RIGID, AFTER_S, self.head)
        self.head = names_of(view)[view.reservation.row] if view.reservation is not None else None
        self.outer = outer
        return view

    def decide(self) -> list[str]:
        """One decision, applied at once. Returns the started gangs."""
        view = self.view = self.see()
        self.decision = decide(view, policy(self.policy), random.Random(0), packing=False)
        begun = []
        self.placed = {}
        for row, gpus in self.decision.placements.items():
            name, there = names_of(view)[row], sum(1 << o for i, o in enumerate(self.outer) if gpus >> i & 1)
            assert not there & union(self.gangs.values())
            if name in self.elastic:
                self.placed[name] = there
            else:
                self.gangs[name] = there
                begun.append(name)
        return begun

    def why(self, name: str):
        assert self.decision is not None
        assert self.view is not None
        return self.decision.why(names_of(self.view).index(name))


def names_of(view: ClusterView) -> list[JobId]:
    return [view.jobs.name(row) for row in range(len(view.jobs))]


def test_gpus_are_held_for_the_head_as_they_come_free_and_reasons_say_so():
    cluster = Cluster((4,), "max-min")
    for name in "abcd":
        cluster.submit(name, 1)
    assert cluster.decide() == ["a", "b", "c", "d"]
    cluster.submit("big", 3)
    cluster.now += AFTER_S
    for number, name in enumerate("abc"):
        cluster.end(name)
        cluster.submit(f"small-{number}", 1)
        started = cluster.decide()
        assert started == (["big"] if name == "c" else [])
        if name == "b":
            assert cluster.why("big").code is ReasonCode.RESERVED
            assert cluster.why("big").text == "waits for 3 GPUs: 2 held for it, 1 in use by jobs that keep them"
            text = "GPUs are being held for big, which waits for 3 GPUs and has 2 of them so far"
            assert cluster.why("small-1").text == text
    assert cluster.gangs["big"].bit_count() == 3
    assert cluster.head == "big"
    cluster.decide()
    assert cluster.head is None


def test_nothing_is_held_for_a_job_that_has_not_waited_long_enough():
    cluster = Cluster((4,), "max-min")
    for name in "abcd":
        cluster.submit(name, 1)
    cluster.decide()
    cluster.submit("big", 4)
    cluster.now += AFTER_S - 1
    cluster.end("a")
    cluster.submit("small", 1)
    assert cluster.decide() == ["small"]


def test_a_gang_passes_where_the_head_is_not_delayed_whoever_ends_first():
    cluster = Cluster((4, 4), "max-min")
    cluster.submit("a", 3)
    cluster.submit("b", 3)
    cluster.decide()
    cluster.submit("big", 4)
    cluster.now += AFTER_S
    cluster.submit("small", 1)  # 2 are free, and 3 more will be: one more than needed
    cluster.submit("late", 1)
    assert cluster.decide() == ["small"]
    assert cluster.why("late").code is ReasonCode.RESERVED
    cluster.end("b")
    assert cluster.decide() == ["big"]


def test_nobody_passes_where_the_head_might_be_delayed():
    cluster = Cluster((8,), "max-min")
    cluster.submit("a", 1)
    cluster.submit("b", 3)
    cluster.submit("c", 3)
    cluster.decide()
    cluster.submit("big", 2)  # one is free: it starts when `a` ends, if that comes first
    cluster.now += AFTER_S
    cluster.submit("small", 1)
    assert cluster.decide() == []
    cluster.end("a")
    assert cluster.decide() == ["big"]


def test_elastic_jobs_use_what_is_held_and_give_it_back():
    cluster = Cluster((8,), "max-min")
    cluster.submit("a", 4)
    cluster.submit("grows", 1, 8, elastic=True)
    cluster.decide()
    cluster.submit("big", 7)
    cluster.now += AFTER_S
    cluster.submit("also", 1, 2, elastic=True)
    cluster.decide()
    assert sum(gpus.bit_count() for gpus in cluster.placed.values()) == 4
    cluster.end("a")
    assert cluster.decide() == ["big"]
    assert {name: gpus.bit_count() for name, gpus in cluster.placed.items()} == {"grows": 1}


def test_whole_servers_are_held_for_a_job_that_needs_them():
    cluster = Cluster((4, 4, 4), "max-min")
    for number in range(12):
        cluster.submit(f"old-{number}", 1)
    cluster.decide()
    cluster.submit("big", 8, each=4)
    cluster.now += AFTER_S
    ends = list(cluster.gangs)
    for number in range(12):
        cluster.end(ends[number])
        cluster.submit(f"new-{number}", 1)
        if "big" in cluster.decide():
            break
    assert sorted((cluster.gangs["big"] >> 4 * at & 15).bit_count() for at in range(3)) == [0, 4, 4]


@pytest.mark.parametrize("name", NAMES)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
    beside=st.integers(0, 2),
    each=st.integers(0, 3),
)
def test_a_gang_that_fits_starts_when_those_have_ended_that_were_there_before(name, sizes, seed, beside, each):
    """Whatever small gangs arrive, in whatever order jobs end, and whatever elastic jobs there are."""
    chance = random.Random(seed)
    total = sum(sizes)
    cluster = Cluster(tuple(sizes), name)
    for number in range(beside):
        cluster.submit(f"elastic-{number}", 1, chance.randint(1, total), elastic=True)
    for number in range(chance.randint(1, 2 * total)):
        cluster.submit(f"old-{number}", chance.randint(1, max(1, total // 2)))
    cluster.decide()
    able = (
        [each * count for count in range(1, 1 + sum(size >= each for size in sizes))] if each else range(1, 1 + total)
    )
    if not cluster.gangs or not able:
        return
    cluster.submit("big", chance.choice(able), each=each)
    cluster.now += AFTER_S
    if "big" in cluster.decide():
        return
    if cluster.head != "big":  # it fits beside the present gangs: the policy decides
        return
    before = {*cluster.gangs, *cluster.placed}
    for number in range(40 * total):
        cluster.now += 1.0
        for more in range(chance.randint(1, 3)):
            cluster.submit(f"small-{number}-{more}", chance.randint(1, max(1, total // 3)))
        running = [*cluster.gangs, *cluster.placed]
        ending = chance.choice(running)
        cluster.end(ending)
        before.discard(ending)
        if "big" in cluster.decide():
            return
        assert cluster.head == "big"
        if not before:
            break
    else:
        return  # the earlier ones still run, and small ones overtake
    pytest.fail(
        f"{cluster.jobs['big']} does not start on {sizes}: {cluster.gangs}, {cluster.placed}, {cluster.view.reservation}"
    )


@given(seed=st.integers(0, 1 << 30))
def test_without_gangs_a_view_is_left_as_it_is(seed):
    chance = random.Random(seed)
    cluster = Cluster((4, 4), chance.choice(NAMES), now=1000.0)
    for number in range(chance.randint(1, 6)):
        cluster.submit(f"j{number}", chance.randint(1, 4), elastic=True)
        cluster.now += 200.0
    assert cluster.see().reservation is None
