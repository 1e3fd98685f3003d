"""Variables that only code between epochs changes: they come to new workers and out of checkpoints."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from elasticd.worker.variables.frames import Variable, find
from elasticd.worker.variables.packed_variables import Packing, without_graph
from tests.forked import Scripts
from tests.worker.ranks import Ranks, also, restarted

ALONE = [[0, [0]]]
# One, three, one of them lost in a step that it has missed, a step given up, two, others; in epochs and at their edges
CHANGING = [
    [0, [0]],
    [4, [0, 1, 2]],
    [9, [0, 1, 2], [2]],
    [11, [2, 1, 0], [], 0],
    [13, [1, 2]],
    [16, [2, 3, 4]],
    [20, [3, 4, 5]],
]
CASES = [
    "early_stopping",
    "objects",
    "counters",
    "used_up",
    "attributes_of_copies",
    "registered",
    *also("of_a_module", "closures", "teachers", "iterated"),
]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Ranks in which no other test has loaded a module: functions of a loaded module may reach a counter by their names."""
    with contextlib.closing(Scripts()) as scripts, contextlib.closing(Ranks(scripts)) as found:
        yield found


@pytest.mark.parametrize("case", CASES)
def test_new_workers_have_the_variables_of_the_others(ranks: Any, tmp_path: Path, case: str) -> None:
    (expected,) = ranks.outcome(f"variable_cases.{case}", ALONE).states
    changed = ranks.train(f"variable_cases.{case}", CHANGING, checkpoints=str(tmp_path))
    assert set(changed.states) == {expected}


@pytest.mark.parametrize("case", CASES)
def test_a_job_that_goes_on_from_a_checkpoint_has_the_variables_of_that_time(
    ranks: Any, tmp_path: Path, case: str
) -> None:
    (expected,) = ranks.outcome(f"variable_cases.{case}", ALONE).states
    assert set(restarted(ranks, f"variable_cases.{case}", tmp_path, 13).states) == {expected}


@pytest.mark.parametrize("step", [4, 5, 6])  # five: the last one of an epoch
def test_parameters_that_are_frozen_where_an_epoch_begins_are_so_at_a_new_worker(ranks: Any, step: int) -> None:
    (expected,) = ranks.outcome("variable_cases.switched", ALONE).states
    assert set(ranks.train("variable_cases.switched", [[0, [0]], [step, [0, 1, 2]]]).states) == {expected}


def test_a_flag_of_the_leader_is_each_workers_own(ranks: Any, tmp_path: Path) -> None:
    (expected,) = ranks.outcome("variable_cases.flags", ALONE).states
    grown = ranks.train("variable_cases.flags", [[0, [0]], [9, [0, 1, 2]]], checkpoints=str(tmp_path))
    assert set(grown.states) == {expected}


def test_a_tensor_loses_its_graph_only_where_no_gradient_can_come_through() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    spent, live = (weight * weight).tanh(), weight + 1.0
    assert without_graph(spent) is spent
    (spent * live).sum().backward()
    assert not without_graph(spent).requires_grad
    assert without_graph(live) is live, "adding keeps nothing that a backward pass frees"
    assert without_graph(spent + live).requires_grad
    assert without_graph(weight) is weight


def test_a_copy_of_the_model_with_a_hook_is_not_carried() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    packing = Packing([model])
    copied = copy.deepcopy(model)
    assert packing.packed(Variable({}, "teacher", copied)) is not None
    copied[0].register_forward_hook(lambda module, inputs, outputs: 0.5 * outputs)
    assert packing.packed(Variable({}, "teacher", copied)) is None


@dataclass
class _Unset:
    later: int = field(init=False)


@pytest.mark.parametrize(
    "value",
    [
        numpy.array([1, 2], dtype=">i4"),
        "\ud800",
        _Unset(),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, dtype=torch.complex64).conj().imag,
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.eye(2).to_sparse(),
    ],
)
def test_a_value_that_cannot_be_packed_is_not_carried(value: Any) -> None:
    packing = Packing([])
    variable = Variable({}, "kept", value)
    assert packing.packed(variable) is packing.text(variable) is packing.without_tensors(variable) is None


class _Slots:
    __slots__ = ("count",)


class _Owner:
    total = 1

    def __init__(self) -> None:
        self.inner = _Slots()
        self.inner.count = 2
        self.values = {"a": [1]}


def _bound(name: str, value: Any) -> Any:
    count, owner = 1, _Owner()
    shared = 5

    def inner() -> int:
        return shared

    variable = find(sys._getframe(), name)
    assert variable is not None
    before = variable.value
    variable.bind(value)
    return before, count, inner(), owner.inner.count, owner.values


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("count", 1, (7, 5, 2, {"a": [1]})),
        ("shared", 5, (1, 7, 2, {"a": [1]})),
        ("owner.inner.count", 2, (1, 5, 7, {"a": [1]})),
        ("owner.values", {"a": [1]}, (1, 5, 2, 7)),
    ],
)
def test_a_variable_is_bound_where_it_is(name: str, before: Any, after: Any) -> None:
    assert _bound(name, 7) == (before, *after)


def test_an_attribute_of_a_class_is_bound_in_the_class() -> None:
    variable = find(sys._getframe(), "_Owner.total")
    assert variable is not None
    assert variable.value == 1
    variable.bind(3)
    assert _Owner.total == 3
    variable.bind(1)


@pytest.mark.parametrize("name", ["nothing", "nothing.here", "_Owner.inner", "torch.nn.nothing", "pytest.mark.x.y"])
def test_a_name_without_a_variable_is_not_found(name: str) -> None:
    assert find(sys._getframe(), name) is None


def test_no_code_of_the_script_runs_when_an_attribute_is_bound() -> None:
    class Guarded:
        def __setattr__(self, name: str, value: Any) -> None:
            raise AssertionError("not to be called")

    guarded = Guarded()
    vars(guarded)["best"] = 1
    Variable(guarded, "best", 1).bind(2)
    assert vars(guarded)["best"] == 2
