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

CASES = ["curriculum", "averages", "replay", "large", "in_hooks", "recurrent", "teachers"]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Any]:
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("timetable", [TWO, CHANGING], ids=["two", "changing"])
def test_a_loss_that_depends_on_a_scripts_values_gives_the_bits_of_one_worker_alone(
    ranks: Any, case: str, timetable: list[Any]
) -> None:
    (expected,) = ranks.outcome(f"state_cases.{case}", ALONE).states
    assert set(ranks.outcome(f"state_cases.{case}", timetable).states) == {expected}


@pytest.mark.parametrize("case", CASES)
def test_a_job_that_goes_on_from_a_checkpoint_ends_with_the_same_bits(ranks: Any, tmp_path: Path, case: str) -> None:
    """Two workers in the middle of an epoch, and one after the restart, with which another joins in a later epoch."""
    (expected,) = ranks.outcome(f"state_cases.{case}", ALONE).states
    ranks.train(f"state_cases.{case}", TWO, checkpoints=str(tmp_path), max_steps=16)
    written = {int(path.stem.rpartition("-")[2]): path for path in tmp_path.glob("*step-*.pt")}
    kept = min((step for step in written if step >= 8), key=lambda step: (step % 6 == 0, step))
    for step, path in written.items():
        if step != kept:
            path.unlink()
    again = [[0, [0]], [20, [0, 1]]]
    assert set(ranks.train(f"state_cases.{case}", again, checkpoints=str(tmp_path)).states) == {expected}
    steps = {int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("*step-*.pt")}
    assert min(steps) >= kept > 0, "the job has begun anew"
