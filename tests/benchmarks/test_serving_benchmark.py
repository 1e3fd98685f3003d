"""A day of serving, and the figures computed from its measurements."""

from __future__ import annotations

import pytest

from benchmarks.serving.day import HOURS, SWING, Day, area, demand, load, reached, table, use


def test_a_day_is_quietest_before_dawn_and_busiest_in_the_evening() -> None:
    hours = [hour / 4 for hour in range(int(4 * HOURS))]
    assert 3.0 <= min(hours, key=load) <= 6.0
    assert max(hours, key=load) == 21.0
    assert load(11.0) > load(16.0) < load(21.0)
    assert load(0.0) == pytest.approx(load(HOURS))


def test_serving_needs_no_more_than_the_swing_and_the_same_on_each_run() -> None:
    day = demand(3000, 48)
    assert day == demand(3000, 48) != demand(3000, 48, seed=1)
    assert max(day) == round(3000 * SWING)
    assert 0 <= min(day) < 100
    assert max(demand(6, 48)) == 4, "the jobs keep a GPU each"


def test_gpu_seconds_count_within_the_day_alone() -> None:
    share = [(-5.0, 2), (10.0, 4), (20.0, 0), (30.0, 1)]
    assert area(share, 40.0) == 2 * 10 + 4 * 10 + 0 + 10
    assert area(share, 15.0) == 2 * 10 + 4 * 5
    assert area([], 15.0) == 0


DAY = Day(
    gpus=4,
    length_s=100.0,
    lent=[(0.0, 0), (50.0, 2)],
    trained=[[(-3.0, 2), (50.0, 1)], [(-3.0, 1), (50.0, 1)]],
    free_s=[0.5, 1.5, 0.2],
    taken=[2, 1, 0],
    filled_s=[8.0],
    unfilled=1,
    equal=True,
    steps=[1200, 900],
)


def test_what_training_adds_is_told_of_all_gpus_and_of_those_that_serving_leaves() -> None:
    found = use(DAY)
    assert found.served == pytest.approx(100 / 400)
    assert found.with_training == pytest.approx(350 / 400)
    assert found.of_idle == pytest.approx(250 / 300)
    assert found.idle_gpus == pytest.approx(2.5)
    assert found.gain == pytest.approx(2.5)


def test_the_table_has_each_figure_beside_the_published_one() -> None:
    rows = table(DAY).splitlines()
    assert all(row.count("|") == 5 for row in rows)
    text = "\n".join(rows)
    for part in (
        "| requests for GPUs; those for which jobs had to shrink | 3; 2 | 362 preemptions |",
        'median | 0.50 s | "in seconds" | <= 2 s |',
        "median, worst | 1.00 s, 1.50 s |",
        "8.0 s; 1 of 2 were cut short",
        "88% (+250%)",
        "2.5, 83% of them | 459 |",
        "all (1,200, 900 steps)",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "holds"),
    [({}, True), ({"free_s": [2.5, 3.0, 0.1]}, False), ({"killed": 1}, False), ({"equal": False}, False)],
)
def test_the_goals_are_two_seconds_nobody_killed_and_equal_bits(changes: dict[str, object], holds: bool) -> None:
    assert reached(Day(**{**vars(DAY), **changes})) is holds  # type: ignore[arg-type]
