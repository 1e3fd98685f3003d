"""A job that is preempted: whatever step it is interrupted at, it ends with the values of one that is not."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elasticd.protocol.messages import Suspend
from elasticd.protocol.model import Determinism, GpuAddress, GpuKind, JobId, Member, Roster, ServerId, WorkerId
from elasticd.worker.driver import LocalControl
from elasticd.worker.environment import ClusterEnvironment
from elasticd.worker.events import CheckpointLoaded, CheckpointMissing, Event, StepWanted, SuspendReceived
from elasticd.worker.machine import WorkerMachine
from elasticd.worker.run import Run
from elasticd.worker.trainer import ScriptExit

EPOCHS, STEPS = 3, 4  # steps of an epoch


class Turn(LocalControl):
    """A worker whose job is preempted at its `boundaries`-th boundary; counted from 0."""

    def __init__(self, place: ClusterEnvironment, boundaries: float, saver: WorkerId | None) -> None:
        member = Member(worker=place.worker, gpu=GpuAddress(server=ServerId("localhost"), index=0))
        roster = Roster(generation=1, members=(member,), leader=member.worker)
        self._left = boundaries
        self._suspend = Suspend(job=place.job, saver=saver)
        super().__init__(WorkerMachine(place.place(1, ""), 0.0), roster)

    def tell(self, fact: Event) -> None:
        if isinstance(fact, StepWanted | CheckpointLoaded | CheckpointMissing):
            if self._left <= 0:
                super().tell(SuspendReceived(self._suspend))
            self._left -= 1
        super().tell(fact)


class Turns:
    """A job, from one process to the next: each ends as a script's does, with what runs at its exit."""

    def __init__(self, directory: Path, lbfgs: bool = False) -> None:
        self._directory = directory
        self._lbfgs = lbfgs
        self.runs = 0

    def train(self, boundaries: float, saver: WorkerId | None = None) -> dict[str, Any] | None:
        """What the script ends with; None: it was preempted before."""
        self.runs += 1
        place = ClusterEnvironment(
            job=JobId("job"),
            worker=WorkerId("solo.0"),
            agent_address="",
            address="127.0.0.1",
            gpu_kind=GpuKind.CPU,
            virtual_workers=2,
            determinism=Determinism.ELASTIC,
            checkpoint_directory=str(self._directory),
            checkpoint_every_s=3600.0,
            checkpoint_keep=2,
            max_steps=None,
        )
        run = Run(Turn(place, boundaries, saver), place, 2, seed=5)
        try:
            return self._script(run)
        except ScriptExit:
            run.finish()  # atexit
            return None

    def _script(self, run: Run) -> dict[str, Any]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if self._lbfgs:
            optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
        ended: list[int] = []
        run.register("ended", lambda: list(ended), lambda values: ended.__setitem__(slice(None), values))
        data = torch.randn(STEPS * 8, 3), torch.randn(STEPS * 8, 1)
        model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=4)
        for epoch in run.epochs(EPOCHS):
            with torch.no_grad():
                model[0].weight.mul_(0.9)  # which the state of a step in this epoch has behind it
            for x, y in batches:

                def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = nn.functional.mse_loss(model(x), y)
                    loss.backward()
                    return loss

                optimizer.step(closure)
            ended.append(epoch)
        kept = {f"optimizer {key}": str(value) for key, value in optimizer.state_dict().items()}
        return {"ended": ended, "steps": run.steps_done, **model.state_dict(), **kept}


def whole(turns: Turns, interrupted: Iterable[int]) -> dict[str, Any]:
    for boundaries in interrupted:
        if (found := turns.train(boundaries)) is not None:
            return found
    raise AssertionError("it never ends")


@pytest.fixture(scope="module", params=[False, True], ids=["SGD", "LBFGS"])
def lbfgs(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, lbfgs: bool) -> dict[str, Any]:
    return whole(Turns(tmp_path_factory.mktemp("alone"), lbfgs), [10**6])


@pytest.mark.parametrize(
    "boundaries",
    [
        (5,),
        (EPOCHS * STEPS + 1, 1),
        *(pytest.param(b, marks=pytest.mark.cluster) for b in ((2,), (3,), (0, 2), (1, 0, 4), (STEPS + 1, 0, 0))),
    ],
    ids=str,
)
def test_interruptions_change_nothing(
    boundaries: tuple[int, ...], reference: dict[str, Any], lbfgs: bool, tmp_path: Path
) -> None:
    turns = Turns(tmp_path, lbfgs)
    found = whole(turns, itertools.islice(itertools.cycle(boundaries), 100))
    assert turns.runs > 1, "it was not interrupted"
    assert (found["ended"], found["steps"]) == (list(range(EPOCHS)), EPOCHS * STEPS)
    for name, value in reference.items():
        assert torch.equal(value, found[name]) if isinstance(value, torch.Tensor) else value == found[name], name


@pytest.mark.parametrize("saver", [None, WorkerId("solo.0"), WorkerId("job.7")], ids=["nobody", "it", "one that left"])
def test_the_state_is_saved_whoever_is_named(saver: WorkerId | None, tmp_path: Path) -> None:
    assert Turns(tmp_path).train(4, saver) is None
    assert [path.name for path in tmp_path.iterdir()] == ["generation-00000001-step-000000000002.pt"]
