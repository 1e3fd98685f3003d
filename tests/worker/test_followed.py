"""Objects that a script changes beside its model are part of the state: equal bits for any number of workers, and across
resizes.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.worker.ranks import ALONE, CHANGING, also

# At an epoch's end: workers that join in its last, short step, and in the first of the next epoch.
AT_THE_END = [[0, [0, 1]], [5, [0, 2, 1]], [11, [3, 2, 1]], [17, [3, 1]], [18, [4, 3, 1]], [20, [3, 4]]]
QUICK = [
    "used_behind_the_loop",
    "used_behind_the_loop_of_shards",
    "by_hand",
    "per_step",
    "per_epoch",
    "averaged",
    "loss_with_weights",
    "noise",
    "average_in_a_function",
    "registered_behind_the_step",
    "buffers_between_epochs",
    "parameters_between_epochs",
]
OTHERS = [
    "by_hand_from_before",
    "by_hand_as_tensor",
    "per_step_made_late",
    "one_cycle",
    "tensor_rate",
    "one_after_another",
    "chained",
    "two_schedulers",
    "plateau",
    "warnings_are_right",
    "teacher",
    "average_by_hand",
    "extra_state",
]


@pytest.mark.parametrize("case", [*QUICK, *also(*OTHERS)])
@pytest.mark.parametrize("timetable", [CHANGING, *also(AT_THE_END)], ids=["changing", "at the end"])
def test_all_workers_end_with_the_bits_of_one_worker_alone(ranks: Any, case: str, timetable: list[Any]) -> None:
    (expected,) = ranks.outcome(f"followed_cases.{case}", ALONE).states
    assert set(ranks.outcome(f"followed_cases.{case}", timetable).states) == {expected}


def test_what_bodies_set_behind_the_last_step_makes_no_worker_differ_that_has_run_fewer_of_them(ranks: Any) -> None:
    (expected,) = ranks.outcome("followed_cases.registered_behind_the_step", ALONE).states
    assert set(ranks.outcome("followed_cases.registered_behind_the_step", [[0, [0, 1, 2]]]).states) == {expected}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (
            "rates_that_differ",
            r"param_groups\[0\]\['weight_decay'\] is 0\.0 on worker 0 and 0\.01 on worker 1 in step 2",
        ),
        ("calls_that_differ", r"scheduler\.step\(\) was called differently on worker 0 and on worker 1 before step 2"),
        (
            "metrics_that_differ",
            r"scheduler\.step\(\) was called differently on worker 0 and on worker 1 before step 6.*run\.means\['loss'\]",
        ),
    ],
)
def test_workers_that_disagree_all_end_with_the_reason(ranks: Any, case: str, words: str) -> None:
    first, second = ranks.outcome(f"followed_cases.{case}", [[0, [0, 1]]]).states
    assert first == second
    assert re.search(words, json.loads(first)[1]), first
