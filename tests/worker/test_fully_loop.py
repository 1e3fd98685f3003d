"""Evaluations, saved files and samples in the loop of a script under `fully_shard`: the bits of one worker alone."""

from __future__ import annotations

import re

import pytest

from tests.worker.ranks import Ranks, also
from tests.worker.test_fully import AT_EPOCHS, RESIZED, divided

AT_FUNCTIONS = [[0, [0]], [7, [0, 1]], [8, [0, 1, 2]], [14, [1, 3]], [21, [1, 4, 5]], [24, [1, 5, 6]]]
BROKEN = [[0, [0, 1]], [4, [0, 1, 2], [], -1], [9, [2, 0]], [11, [2, 0], [], 0], [14, [0, 5]]]


def expected(ranks: Ranks, case: str) -> set[str]:
    return set(ranks.outcome(f"fsdp_loop_cases.{case}_whole", [[0, [0]]]).states)


@pytest.mark.parametrize(
    "timetable",
    [
        RESIZED,
        *also(AT_EPOCHS, AT_FUNCTIONS, BROKEN, *([[0, [*range(workers)]]] for workers in (1, 2, 3))),
    ],
    ids=str,
)
def test_what_a_loop_computes_and_saves_does_not_depend_on_the_workers(ranks: Ranks, timetable: list[object]) -> None:
    assert divided(ranks, "loop", timetable, module="fsdp_loop_cases") == expected(ranks, "loop")


ALONE = "on one worker alone, under a condition on its rank"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("sampled", ALONE),
        ("saved_by_one", ALONE),
        ("trained_again", r"backward\(\) was called .* behind its optimizer.step"),
        ("saved_in_parts", r"torch\.distributed\.checkpoint\.save\(\) was given parameters"),
        ("kept_copies", "a copy of parameters under fully_shard that was made in a loop body"),
        *also(("sampled_before", rf"{ALONE}|in different orders, or different ones")),  # whichever is seen first
    ],
)
def test_what_one_worker_alone_cannot_do_is_refused(ranks: Ranks, case: str, message: str) -> None:
    (told,) = divided(ranks, case, [[0, [0, 1]]], module="fsdp_loop_cases")
    assert re.search(message, told), told
