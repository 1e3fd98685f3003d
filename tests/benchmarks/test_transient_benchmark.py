"""The arithmetic of `make bench-transient`: steps, the ideal, and the time until GPUs are used."""

from __future__ import annotations

import pytest

from benchmarks.runtime.record import Applied
from benchmarks.transient.__main__ import table
from benchmarks.transient.course import Course, Part, Step
from benchmarks.transient.schemes import applied


def course(lost_s: float = 0.0) -> Course:
    """Ten seconds on 4 GPUs and ten on 8, at one and two steps per second; the first `lost_s` of the second part are lost."""
    steps = [Step(0.5 + number, 4) for number in range(10)]
    at_s = 10.25 + lost_s
    while at_s < 20:
        steps.append(Step(at_s, 8))
        at_s += 0.5
    return Course("ours", 4, 4, [Part(0.0, 10.0, 4), Part(10.0, 20.0, 8)], steps, [1.0])


def test_without_a_pause_the_ideal_is_reached() -> None:
    found = course()
    assert (found.step_s(4), found.step_s(8)) == (1.0, 0.5)
    assert (found.done, found.ideal(), found.ratio) == (30, 30.0, 1.0)
    assert found.baseline == pytest.approx(20 / 30)
    assert found.grown_s == [0.25]


def test_a_pause_at_a_change_is_a_loss_and_does_not_change_the_ideal() -> None:
    found = course(lost_s=2.0)
    assert found.ideal() == pytest.approx(30.0)
    assert found.ratio == pytest.approx(26 / 30)
    assert found.grown_s == [2.25]


def test_a_number_of_gpus_on_which_it_never_trained_has_no_pace() -> None:
    with pytest.raises(ValueError, match="no steady steps on 5 GPUs"):
        course().step_s(5)


def test_a_step_is_applied_when_its_last_worker_has_applied_it() -> None:
    lines = [
        Applied(at_s, step, 1, rank, 2, "-")
        for at_s, step, rank in ((1.0, 0, 0), (1.4, 0, 1), (2.0, 1, 1), (2.1, 1, 0))
    ]
    assert applied(lines) == [Step(1.4, 2), Step(2.1, 2)]


def test_the_table_has_a_column_for_each_number_of_gpus() -> None:
    lines = table({"elasticctl": [course(), course(lost_s=2.0)]}).splitlines()
    assert lines[0] == "| 4 GPUs kept, and | 4 more | 4 more | EDL 6.2 |"
    assert any("1.000 | 0.867" in line for line in lines)
