"""The deadline benchmark: the drawn day, the figures computed from it, and the picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.deadlines.day import FACTORS, REQUESTED, Story, arrivals, kept, table
from benchmarks.deadlines.picture import draw

KEPT = Story("job 1", 0.0, 100, 60.0, verdict="holds", planned_s=50.0, ended_s=45.0, shares=[(1.0, 2), (20.0, 4)])
REFUSED = Story("job 2", 5.0, 100, 20.0, verdict="refused", offer="31 s would hold")
TOLD = Story("job 3", 5.0, 100, 40.0, verdict="holds", planned_s=38.0, ended_s=44.0, told_s=30.0, shares=[(6.0, 1)])
SILENT = Story("job 4", 5.0, 100, 40.0, verdict="holds", planned_s=38.0, ended_s=44.0, shares=[(6.0, 1)])
OTHER = Story("job 5", 10.0, 100, ended_s=70.0, shares=[(12.0, 1)])


def test_jobs_want_the_load_that_is_asked_for_and_come_in_the_same_order_on_each_run() -> None:
    day = arrivals(480.0, 24, gpus=8, step_s=0.2)
    assert day == arrivals(480.0, 24, gpus=8, step_s=0.2)
    assert sum(arrival.steps for arrival in day) * 0.2 == pytest.approx(0.9 * 8 * 480 * 0.75, rel=0.05)
    assert [arrival.at_s for arrival in day] == sorted(arrival.at_s for arrival in day)
    low, high = FACTORS
    factors = [arrival.deadline_s * REQUESTED / (arrival.steps * 0.2) for arrival in day if arrival.deadline_s]
    assert all(low <= factor <= high for factor in factors)
    assert 0 < len(factors) < len(day), "some have none"


def test_a_promise_that_breaks_without_a_word_fails_the_day() -> None:
    assert kept([KEPT, REFUSED, TOLD, OTHER])
    assert not kept([KEPT, SILENT])
    assert not kept([Story("job 6", 0.0, 10)]), "it is not over"


def test_the_table_counts_what_was_promised_and_what_became_of_it() -> None:
    rows = table([KEPT, REFUSED, TOLD, SILENT, OTHER])
    assert "| 4; 3; 3 |" in rows
    assert "| promised deadlines that were missed | 2 |" in rows
    assert "| of these not told of before | 1 |" in rows
    assert "| -6 s, -6 s |" in rows
    assert "| 60 s (1 jobs) |" in rows


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "day.png"
    draw(path, [KEPT, REFUSED, TOLD, OTHER], 8, 100.0)
    assert path.read_bytes().startswith(b"\x89PNG")
