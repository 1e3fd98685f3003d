"""Jobs whose model is under `fully_shard` (FSDP2): the bits of one worker alone that has all of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.ranks import ALONE, Ranks, also

CASES = ["transformer", *also("clipped_in_bodies", "state_from_before")]
RESIZED = [[0, [0]], [3, [0, 1, 2]], [8, [1, 2]], [13, [3, 1]], [17, [1]], [20, [1, 4]]]


def expected(ranks: Ranks, case: str) -> set[str]:
    return set(ranks.outcome(f"fsdp_cases.{case}_whole", ALONE).states)


def divided(ranks: Ranks, case: str, timetable: list[Any], **named: Any) -> set[str]:
    return set(ranks.train(f"fsdp_cases.{case}", timetable, **named).states)


@pytest.mark.parametrize("workers", [1, 2, 3, *also(4, 6)])
@pytest.mark.parametrize("case", CASES)
def test_the_number_of_workers_changes_no_bit(ranks: Ranks, case: str, workers: int) -> None:
    assert divided(ranks, case, [[0, [*range(workers)]]]) == expected(ranks, case)


@pytest.mark.parametrize("case", CASES)
def test_resizes_change_no_bit(ranks: Ranks, case: str) -> None:
    assert divided(ranks, case, RESIZED) == expected(ranks, case)
