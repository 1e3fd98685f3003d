"""Throughput on GPUs of several types, and proposals for more of them (EasyScale 3.4, equation 1)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.companion import Proposal, accepted, plan, plans, proposals
from elasticd.worker.hosting import balanced

NAMES = ("V100", "P100", "T4")
SPEEDS = st.fixed_dictionaries({name: st.floats(0.1, 10.0) for name in NAMES})
COUNTS = st.fixed_dictionaries({name: st.integers(0, 4) for name in NAMES}).filter(lambda counts: any(counts.values()))


@given(st.integers(1, 40), SPEEDS, COUNTS)
def test_a_plan_obeys_the_four_equations(n: int, speed: dict[str, float], gpus: dict[str, int]) -> None:
    found = plan(n, speed, gpus)
    room = sum(found.gpus[name] * found.hosted[name] for name in found.gpus)
    assert room >= n
    assert found.overload_s == pytest.approx(max(found.hosted[name] / speed[name] for name in found.gpus))
    assert found.waste >= -1e-9
    assert found.throughput == pytest.approx(n / found.overload_s)
    assert found.throughput <= sum(gpus[name] * speed[name] for name in gpus) + 1e-9


@given(st.integers(1, 8), SPEEDS, COUNTS)
def test_no_other_hosting_is_faster(n: int, speed: dict[str, float], gpus: dict[str, int]) -> None:
    found = plan(n, speed, gpus)
    used = list(found.gpus)
    others = [
        max(hosted / speed[name] for hosted, name in zip(each, used, strict=True))
        for each in product(range(n + 1), repeat=len(used))
        if sum(hosted * gpus[name] for hosted, name in zip(each, used, strict=True)) >= n
    ]
    assert found.overload_s == pytest.approx(min(others))


@given(st.integers(1, 40), SPEEDS, COUNTS)
def test_it_is_the_step_of_the_hosting_that_workers_choose(
    n: int, speed: dict[str, float], gpus: dict[str, int]
) -> None:
    found = plan(n, speed, gpus)
    times = [1.0 / speed[name] for name, count in gpus.items() for _ in range(count)]
    if n < len(times) or not all(found.hosted.values()):
        return  # workers host at least one each
    sizes = balanced(n, times)
    assert max(size * time for size, time in zip(sizes, times, strict=True)) == pytest.approx(found.overload_s)


def test_one_type_is_the_number_of_turns() -> None:
    assert plan(10, {"V100": 2.0}, {"V100": 4}).throughput == pytest.approx(10 / (3 / 2.0))


def test_the_example_of_unequal_gpus() -> None:
    found = plan(8, {"V100": 3.0, "T4": 1.0}, {"V100": 2, "T4": 2})
    assert (found.hosted, found.overload_s, found.waste, found.throughput) == ({"V100": 3, "T4": 1}, 1.0, 0.0, 8.0)


def test_the_first_plan_is_the_fastest_and_of_equals_the_smallest() -> None:
    best = plans(4, {"V100": 2.0, "T4": 0.1}, {"V100": 3, "T4": 2})[0]
    assert best.gpus == {"V100": 2}, "a third V100 leaves two turns, and a T4 would be waited for"


def test_proposals_come_by_speedup_per_gpu_and_none_that_brings_nothing() -> None:
    speed = {"V100": 2.0, "T4": 1.0}
    found = proposals("a", 8, speed, {"V100": 1}, {"V100": 3, "T4": 2}, 3)
    assert [(one.type, one.more) for one in found] == [("V100", 3), ("V100", 1), ("V100", 2)]
    assert [round(one.speedup, 3) for one in found] == [4.0, 2.0, 2.667]
    assert proposals("a", 8, {"V100": 2.0, "T4": 0.1}, {"V100": 2}, {"T4": 4}, 3) == []


@given(
    st.lists(
        st.builds(Proposal, st.sampled_from("abcd"), st.sampled_from(NAMES), st.integers(1, 4), st.floats(1.01, 9.0)),
        max_size=12,
    ),
    st.fixed_dictionaries({name: st.integers(0, 6) for name in NAMES}),
)
def test_accepted_proposals_fit_and_none_that_was_left_out_would_have_come_first(
    wishes: list[Proposal], idle: dict[str, int]
) -> None:
    granted = accepted(wishes, idle)
    assert len({one.job for one in granted}) == len(granted)
    for name, count in idle.items():
        assert sum(one.more for one in granted if one.type == name) <= count
    for wish in wishes:
        if wish not in granted and all(one.job != wish.job for one in granted):
            before = [one for one in granted if one.type == wish.type and one.per_gpu >= wish.per_gpu]
            assert sum(one.more for one in before) + wish.more > idle[wish.type]
