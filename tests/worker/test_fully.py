"""Jobs whose model is under `fully_shard` (FSDP2): the bits of one worker alone that has all of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.ranks import ALONE, Ranks, also

CASES = ["transformer", *also("clipped_in_bodies", "state_from_before", "summed")]
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


AT_EPOCHS = [[0, [0, 1]], [5, [0, 1, 2]], [6, [0, 2]], [12, [0, 2, 3]], [17, [3, 2]], [18, [3, 2, 4]], [23, [2, 5]]]


def test_resizes_at_the_ends_of_epochs_change_no_bit(ranks: Ranks) -> None:
    assert divided(ranks, "transformer", AT_EPOCHS) == expected(ranks, "transformer")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("transformer", 3), ("transformer", 2)),
        (("transformer", 2), ("transformer_whole", 1)),
        *also((("transformer_whole", 2), ("transformer", 3)), (("state_from_before", 3), ("state_from_before", 1))),
    ],
)
def test_a_checkpoint_has_the_whole_state_whoever_reads_it(
    ranks: Ranks, tmp_path: Path, first: tuple[str, int], second: tuple[str, int]
) -> None:
    case = first[0].removesuffix("_whole")
    divided(ranks, first[0], [[0, [*range(first[1])]]], checkpoints=str(tmp_path))
    written = sorted(tmp_path.glob("*step-*.pt"))
    for path in written[4:]:
        path.unlink()
    kept = torch.load(written[3], weights_only=True)["header"]
    assert len(kept["optimizers"][0]["states"]) >= 8
    again = divided(ranks, second[0], [[0, [*range(second[1])]]], checkpoints=str(tmp_path))
    assert again == expected(ranks, case)
    assert sorted(tmp_path.glob("*step-*.pt"))[3] == written[3], "the job has begun anew"


def test_a_state_is_written_whole_by_a_worker_that_takes_over_rows_behind_the_same_step(
    ranks: Ranks, tmp_path: Path
) -> None:
    """A checkpoint is due behind each step: the leader has all rows when workers leave."""
    leaving = [[0, [0, 1, 2]], [4, [0, 1]], [9, [0]], [12, [0, 3, 4]], [15, [0, 4]]]
    assert divided(ranks, "transformer", leaving, checkpoints=str(tmp_path)) == expected(ranks, "transformer")
    kept = [int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("*step-*.pt")]
    assert {3, 8, 14} & set(kept), "one of these was written by a worker that has taken over rows"


def test_a_worker_that_comes_when_no_step_is_left_has_the_whole_model(ranks: Ranks) -> None:
    late = [[0, [0, 1]], [24, [1, 2, 3]]]
    assert divided(ranks, "transformer", late) == expected(ranks, "transformer")


def test_rows_stay_where_they_are_if_they_cannot_be_divided_anew(ranks: Ranks) -> None:
    """The communicator breaks while the rows for a worker that joins are on their way."""
    again = [[0, [0, 1]], [4, [0, 1, 2]], [4, [0, 1, 2], [], -1], [9, [2, 0]]]
    assert divided(ranks, "transformer", again) == expected(ranks, "transformer")


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("clipped", "clip_grad_norm_.. was called in a loop body"),
        ("changed_gradient", "no worker has it there"),
        ("replaced_gradient", "no worker has it there"),
        ("changed_parameter", "a loop body changed a parameter itself"),
        ("twice", "used twice in one loop body"),
        ("called_between", "the model was called in the loop"),
        ("changed_between", "changed a parameter between two steps"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_code_whose_result_would_depend_on_the_workers_is_refused(
    ranks: Ranks, case: str, message: str, workers: int
) -> None:
    (told,) = divided(ranks, case, [[0, [*range(workers)]]])
    assert re.search(message, told), told


def test_bodies_that_use_layers_in_different_orders_end_the_job_on_every_worker(ranks: Ranks) -> None:
    (told,) = divided(ranks, "turned", [[0, [0, 1]]])
    assert "in different orders" in told
