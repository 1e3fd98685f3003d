"""Jobs whose optimizer state is divided among the workers: the bits of one worker alone that has all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.errors import UserError
from elasticd.protocol.model import Determinism
from elasticd.worker.checking import check_divided
from elasticd.worker.sharding.divided import DividedState
from elasticd.worker.sharding.intervals import Interval
from elasticd.worker.sharding.pieces import Piece, compose, memory_of
from tests.worker.ranks import ALONE, CHANGING, Outcome, Ranks, also

# Workers 1 and 2 do not learn that step 5 is confirmed, which worker 0 applies; later one of two does not, and one leaves.
MISSED = [[0, [0, 1, 2]], [6, [0, 1, 2], [1, 2]], [10, [0, 2], [2]], [14, [0, 2, 3]]]
TO_ONE = [[0, [0, 1, 2]], [6, [1, 2], [1]], [10, [2]], [12, [2, 3, 4]]]
CASES = ["plain", "several_types"]
OTHERS = ["several_optimizers_and_schedulers", "many_segments", "own_batches"]


def models(outcome: Outcome) -> set[str]:
    return {json.dumps(json.loads(state)[0], sort_keys=True) for state in outcome.states}


@pytest.mark.parametrize("case", [CASES[0], *also(CASES[1], *OTHERS)])
def test_resizes_change_no_bit(ranks: Ranks, case: str) -> None:
    expected = models(ranks.outcome(case, ALONE))
    assert models(ranks.train(case, CHANGING, sharding="optimizer")) == expected


@pytest.mark.parametrize("timetable", [MISSED, TO_ONE], ids=["confirmations that are lost", "down to one"])
@pytest.mark.parametrize("case", [CASES[1], *also(CASES[0], *OTHERS)])
def test_a_step_that_only_some_have_applied_is_made_up_for(ranks: Ranks, case: str, timetable: list[Any]) -> None:
    expected = models(ranks.outcome(case, ALONE))
    assert models(ranks.train(case, timetable, sharding="optimizer")) == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [("optimizer", "optimizer"), *also(("optimizer", "none"), ("none", "optimizer"))],
)
def test_a_checkpoint_has_the_whole_state_whoever_reads_it(
    ranks: Ranks, tmp_path: Path, first: str, second: str
) -> None:
    expected = models(ranks.outcome("several_types", ALONE))
    ranks.train("several_types", [[0, [0, 1, 2]]], sharding=first, checkpoints=str(tmp_path))
    written = sorted(tmp_path.glob("*step-*.pt"))
    for path in written[4:]:
        path.unlink()
    kept = torch.load(written[3], weights_only=True)["header"]
    assert len(kept["optimizers"][0]["states"]) == 9, "of all parameters"
    again = [[0, [0, 1]]]
    assert models(ranks.train("several_types", again, sharding=second, checkpoints=str(tmp_path))) == expected
    assert sorted(tmp_path.glob("*step-*.pt"))[3] == written[3], "the job has begun anew"


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"determinism": Determinism.NONE}, "the job's determinism is none"),
        ({"updates": ["first", "second"]}, "several updates"),
        ({"scaler": torch.amp.GradScaler("cpu")}, "a gradient scaler; bfloat16 needs none"),
        ({"before_update": lambda: None}, "before_update="),
        ({"gathers": True}, "gathers=True"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_work_with_a_divided_state_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {
        "determinism": Determinism.ELASTIC,
        "updates": ["all"],
        "scaler": None,
        "before_update": None,
        "gathers": False,
    }
    check_divided(**usual)
    with pytest.raises(UserError, match=message):
        check_divided(**{**usual, **given})


def test_an_optimizer_that_looks_at_whole_parameters_is_refused_by_name() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4, 4))
    with pytest.raises(UserError, match="Adafactor: it divides each gradient by means"):
        DividedState([torch.optim.Adafactor([parameter])])


def test_a_parameter_whose_memory_has_gaps_is_refused() -> None:
    with pytest.raises(UserError, match="gaps"):
        memory_of(torch.zeros(4, 8)[:, ::2])
    assert memory_of(torch.arange(6.0).view(2, 3).t()).tolist() == [0, 1, 2, 3, 4, 5]


# --------------------------------------------------------------------------------------------------------------- pieces


def piece(begin: int, end: int, step: float = 1.0) -> Piece:
    state = {"step": torch.tensor(step), "exp_avg": torch.arange(float(begin), float(end)), "none": None}
    return Piece(Interval(0, begin, end), state)


@pytest.mark.parametrize(
    "given",
    [
        lambda: [piece(0, 100)],
        lambda: [piece(60, 100), piece(0, 30), piece(30, 60)],
        lambda: [piece(20, 80)],
    ],
    ids=["a part", "several", "the same"],
)
def test_pieces_are_put_together_in_order(given: Callable[[], list[Piece]]) -> None:
    found = compose(Interval(0, 20, 80), given())
    assert found.interval == Interval(0, 20, 80)
    assert found.state["exp_avg"].tolist() == [float(each) for each in range(20, 80)]
    assert (found.state["step"].item(), found.state["none"]) == (1.0, None)


def test_pieces_with_a_hole_between_them_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="missing"):
        compose(Interval(0, 20, 80), [piece(0, 30), piece(40, 100)])
