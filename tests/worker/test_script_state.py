"""Values of the script's own (`run.state`, `run.per_virtual_worker`, `run.epoch_begin`): equal bits in every history."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("test_training_for_state", HERE / "test_training.py")
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
Ranks = _module.Ranks

ALONE = [[0, [0]]]
TWO = [[0, [0, 1]]]
# One, three, one of them lost in a step that it has missed, two, others; in the middle of epochs and at their edges
CHANGING = [[0, [0]], [5, [0, 1, 2]], [10, [0, 1, 2], [2]], [13, [1, 2]], [18, [2, 3, 4]], [22, [3, 4]]]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Any]:
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.mark.parametrize("case", ["curriculum", "averages", "replay", "large", "in_hooks", "recurrent", "teachers"])
@pytest.mark.parametrize("timetable", [TWO, CHANGING], ids=["two", "changing"])
def test_a_loss_that_depends_on_a_scripts_values_gives_the_bits_of_one_worker_alone(
    ranks: Any, case: str, timetable: list[Any]
) -> None:
    (expected,) = ranks.outcome(f"state_cases.{case}", ALONE).states
    assert set(ranks.outcome(f"state_cases.{case}", timetable).states) == {expected}
