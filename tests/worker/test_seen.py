"""A script's readings of the last step are equal on every worker, at each point of the script, so that it may decide by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker.ranks import ALONE, CHANGING, also
from tests.worker.turns import WHOLE, Play

LAST = 24  # steps
MISSING = {  # workers that miss the step before: in the middle of an epoch, its last, the job's last
    "some": [[0, [0, 1]], [5, [0, 1], [1]], [9, [0, 1], [0]], [12, [0, 1], [1]], [23, [0, 1], [0]]],
    "all ends": [[0, [0, 1]], [6, [0, 1], [1]], [12, [1, 0], [0]], [18, [0, 1, 2], [1]], [LAST, [0, 1, 2], [1, 2]]],
}


@pytest.mark.parametrize("case", ["ordinary", *also("host", "deciding")])
@pytest.mark.parametrize("timetable", [CHANGING, *MISSING.values()], ids=["changing", *MISSING])
def test_all_workers_read_what_one_worker_alone_does(ranks: Any, case: str, timetable: list[Any]) -> None:
    if case == "deciding":  # whether a step is the job's last is decided after it
        timetable = [entry for entry in timetable if entry[0] < LAST]
    (alone,) = ranks.outcome(f"seen_cases.{case}", ALONE).states
    *expected, points = json.loads(alone)
    for state in ranks.outcome(f"seen_cases.{case}", timetable).states:
        *found, seen = json.loads(state)
        assert found == expected
        assert len(seen) > 5
        assert {point: points.get(point) for point in seen} == seen


@pytest.mark.parametrize("boundaries", [6, *also(5, 7)])
def test_a_job_that_goes_on_from_a_checkpoint_reads_what_it_would_have_read(
    play: Play, boundaries: int, tmp_path: Path
) -> None:
    _, _, (alone,) = play("Reads", tmp_path / "alone", WHOLE)
    runs, _, turns = play("Reads", tmp_path / "turns", (boundaries,) * 20)
    assert runs > 2
    for seen in turns:
        assert seen
        assert {point: alone[point] for point in seen} == seen
