"""What a check shows of its findings."""

from __future__ import annotations

from typing import Any

import pytest

from elasticd.ctl.check import parts
from elasticd.ctl.check.driver import Outcome, error_line
from elasticd.ctl.check.screen import Screen, told_once
from elasticd.ctl.check.verdict import Finding

COUNTER = Finding(
    "join at step 1", "other bits after step 3: weight", "global_step", "train.py", 3, text="global_step is 8 and 0"
)


def in_reverse(name: str) -> Finding:
    return Finding(parts.BACKWARDS.tried, "other bits after step 1: weight", name, text=f"{name} is changed by a body")


def test_a_name_is_told_once_by_the_finding_that_shows_two_values() -> None:
    assert told_once([in_reverse("global_step"), COUNTER, COUNTER]) == [COUNTER]
    assert told_once([in_reverse("hidden"), COUNTER]) == [in_reverse("hidden"), COUNTER]


def test_findings_without_a_name_are_told_where_there_is_no_other() -> None:
    unnamed = Finding("join at step 1", "other bits after step 3: weight")
    assert told_once([unnamed]) == [unnamed]
    assert told_once([unnamed, COUNTER]) == [COUNTER]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_fit_the_terminal(capsys: pytest.CaptureFixture[str], width: int) -> None:
    roster: Any = next(each for each in parts.planned(23, 10, 4) if each.kind is parts.Kind.ROSTER)
    Screen(width, colour=False, quiet=False).part(roster, Outcome(roster, 12.3), COUNTER)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("DIFFERS")
    assert all(len(line) <= max(width, 60) for line in lines)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (("Traceback", "ValueError: no such data", "Fatal Python error: Aborted"), "ValueError: no such data"),
        (("a.b.CustomError: x", "bye"), "a.b.CustomError: x"),
        (("step 1", "Killed"), "Killed"),
        ((), ""),
    ],
)
def test_the_error_of_an_output_is_its_last_exception(lines: tuple[str, ...], error: str) -> None:
    assert error_line(lines) == error
