"""Throughput on GPUs of several types (EasyScale 3.4, equation 1)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.scheduler.companion import plan
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
