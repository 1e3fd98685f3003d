"""Jobs whose optimizer state is divided among the workers: the bits of one worker alone that has all of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.errors import UserError
from elasticd.protocol.model import Determinism
from elasticd.worker.checking import check_divided
from elasticd.worker.gradients.layout import Layout
from elasticd.worker.gradients.update import make_elastic
from elasticd.worker.sharding.divided import DividedState
from elasticd.worker.sharding.elementwise import check_hooks
from elasticd.worker.sharding.intervals import Interval
from elasticd.worker.sharding.pieces import Piece, compose, memory_of, of_whole
from tests.worker.ranks import ALONE, CHANGING, Ranks, also

# Workers 1 and 2 do not learn that step 5 is confirmed, which worker 0 applies; later one of two does not, and one leaves.
MISSED = [[0, [0, 1, 2]], [6, [0, 1, 2], [1, 2]], [10, [0, 2], [2]], [14, [0, 2, 3]]]
TO_ONE = [[0, [0, 1, 2]], [6, [1, 2], [1]], [10, [2]], [12, [2, 3, 4]]]
CASES = ["plain", "several_types"]
OTHERS = ["several_optimizers", "state_from_before", "changed_between_epochs"]


def expected(ranks: Ranks, case: str) -> set[str]:
    return set(ranks.outcome(f"divided_cases.{case}", ALONE).states)


def divided(ranks: Ranks, case: str, timetable: list[Any], **named: Any) -> set[str]:
    return set(ranks.train(f"divided_cases.{case}", timetable, **{"sharding": "optimizer", **named}).states)


@pytest.mark.parametrize("case", [CASES[0], *also(CASES[1], *OTHERS)])
def test_resizes_change_no_bit(ranks: Ranks, case: str) -> None:
    assert divided(ranks, case, CHANGING) == expected(ranks, case)


@pytest.mark.parametrize("timetable", [MISSED, TO_ONE], ids=["confirmations that are lost", "down to one"])
@pytest.mark.parametrize("case", [CASES[1], *also(CASES[0], *OTHERS)])
def test_a_step_that_only_some_have_applied_is_made_up_for(ranks: Ranks, case: str, timetable: list[Any]) -> None:
    assert divided(ranks, case, timetable) == expected(ranks, case)


@pytest.mark.cluster
def test_a_batch_that_grows_changes_the_rate_of_every_piece(ranks: Ranks) -> None:
    changing = [[0, [0]], [2, [0, 1, 2]], [5, [0, 1, 2], [2]], [8, [3, 1]], [10, [3, 1, 4, 5]]]
    assert divided(ranks, "grown", changing) == expected(ranks, "grown")


@pytest.mark.parametrize(
    ("first", "second"),
    [("optimizer", "optimizer"), *also(("optimizer", "none"), ("none", "optimizer"))],
)
def test_a_checkpoint_has_the_whole_state_whoever_reads_it(
    ranks: Ranks, tmp_path: Path, first: str, second: str
) -> None:
    divided(ranks, "several_types", [[0, [0, 1, 2]]], sharding=first, checkpoints=str(tmp_path))
    written = sorted(tmp_path.glob("*step-*.pt"))
    for path in written[4:]:
        path.unlink()
    kept = torch.load(written[3], weights_only=True)["header"]
    assert len(kept["optimizers"][0]["states"]) >= 10, "of all parameters with elements"
    again = divided(ranks, "several_types", [[0, [0, 1]]], sharding=second, checkpoints=str(tmp_path))
    assert again == expected(ranks, "several_types")
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


def test_other_parameters_than_those_of_the_first_step_are_refused() -> None:
    first, second = torch.nn.Parameter(torch.zeros(12, 12)), torch.nn.Parameter(torch.zeros(12, 12))
    state = DividedState([torch.optim.SGD([first, second])])
    state._lay_out(Layout([first], 1))
    state._lay_out(Layout([first], 4))
    with pytest.raises(UserError, match="frozen or added"):
        state._lay_out(Layout([second], 1))


def test_hooks_of_a_step_are_refused() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])
    check_hooks([optimizer])
    optimizer.register_step_pre_hook(lambda *given: None)
    with pytest.raises(UserError, match="SGD has a hook"):
        check_hooks([optimizer])


def test_a_divided_state_is_neither_written_nor_loaded_as_if_it_were_whole() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
    make_elastic(optimizer, lambda: None, lambda: False, divided=True)
    with pytest.raises(UserError, match="elasticctl export"):
        optimizer.state_dict()
    with pytest.raises(UserError, match="load_state_dict"):
        optimizer.load_state_dict({})


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


def test_a_state_that_was_loaded_gets_the_memory_order_of_its_parameter() -> None:
    parameter = torch.arange(6.0).view(2, 3).t()
    loaded = {"step": torch.tensor(1.0), "exp_avg": parameter.contiguous()}
    found = of_whole(parameter, Interval(0, 0, 6), loaded)
    assert torch.equal(found.state["exp_avg"], memory_of(parameter))


def test_pieces_with_a_hole_between_them_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="missing"):
        compose(Interval(0, 20, 80), [piece(0, 30), piece(40, 100)])
