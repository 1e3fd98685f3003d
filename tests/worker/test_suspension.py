"""A preempted job: after an interruption at any step, it ends with the values of an undisturbed one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.ranks import also
from tests.worker.turns import EPOCHS, STEPS, WHOLE, Play


@pytest.fixture(scope="module", params=["Ordinary", "Lbfgs", "Keeping"], ids=["SGD", "LBFGS", "own variables"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, play: Play, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = play(kind, tmp_path_factory.mktemp("alone"), WHOLE)[1]
    return found


@pytest.mark.parametrize(
    "boundaries",
    [
        (5,),
        *also(((EPOCHS * STEPS + 1, 1),), ((2,),), ((3,),), ((0, 2),), ((1, 0, 4),), ((STEPS + 1, 0, 0),)),
    ],
    ids=str,
)
def test_interruptions_change_nothing(
    boundaries: tuple[int, ...], play: Play, kind: str, reference: dict[str, Any], tmp_path: Path
) -> None:
    runs, found, _ = play(kind, tmp_path, tuple(itertools.islice(itertools.cycle(boundaries), 100)))
    assert runs > 1, "it was not interrupted"
    assert (found["ended"], found["steps"]) == (list(range(EPOCHS)), EPOCHS * STEPS)
    for name, value in reference.items():
        assert torch.equal(value, found[name]) if isinstance(value, torch.Tensor) else value == found[name], name


@pytest.mark.parametrize(
    "saver",
    [None, *also("solo.0", "job.7")],
    ids=["nobody", "it", "one that left"],
)
def test_the_state_is_saved_whoever_is_named(play: Play, saver: str | None, tmp_path: Path) -> None:
    assert play("Ordinary", tmp_path, (4,), saver)[:2] == (1, None)
    assert [path.name for path in tmp_path.iterdir()] == ["generation-00000001-step-000000000002.pt"]
