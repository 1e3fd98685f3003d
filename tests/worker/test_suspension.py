"""A preempted job: after an interruption at any step, it ends with the values of an undisturbed one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.model import WorkerId
from tests.worker.ranks import also
from tests.worker.turns import EPOCHS, STEPS, WHOLE, Lbfgs, Ordinary, Play, Turns


@pytest.fixture(scope="module", params=[Ordinary, Lbfgs], ids=["SGD", "LBFGS"])
def kind(request: pytest.FixtureRequest) -> type[Turns]:
    return request.param


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, play: Play, kind: type[Turns]) -> dict[str, Any]:
    return play(kind, tmp_path_factory.mktemp("alone"), WHOLE)[1]


@pytest.mark.parametrize(
    "boundaries",
    [
        (5,),
        *also(((EPOCHS * STEPS + 1, 1),), ((2,),), ((3,),), ((0, 2),), ((1, 0, 4),), ((STEPS + 1, 0, 0),)),
    ],
    ids=str,
)
def test_interruptions_change_nothing(
    boundaries: tuple[int, ...], play: Play, kind: type[Turns], reference: dict[str, Any], tmp_path: Path
) -> None:
    runs, found, _ = play(kind, tmp_path, tuple(itertools.islice(itertools.cycle(boundaries), 100)))
    assert runs > 1, "it was not interrupted"
    assert (found["ended"], found["steps"]) == (list(range(EPOCHS)), EPOCHS * STEPS)
    for name, value in reference.items():
        assert torch.equal(value, found[name]) if isinstance(value, torch.Tensor) else value == found[name], name


@pytest.mark.parametrize(
    "saver",
    [None, *also(WorkerId("solo.0"), WorkerId("job.7"))],
    ids=["nobody", "it", "one that left"],
)
def test_the_state_is_saved_whoever_is_named(saver: WorkerId | None, tmp_path: Path) -> None:
    assert Ordinary(tmp_path).train(4, saver) is None
    assert [path.name for path in tmp_path.iterdir()] == ["generation-00000001-step-000000000002.pt"]
