"""What a script reads of the last step is the same on every worker, at each point of the script: it may decide by it."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.worker.run import Run
from tests.worker import test_suspension as _suspension
from tests.worker.ranks import ALONE, CHANGING

LAST = 24  # steps
MISSING = {  # who misses the step before: in the middle of an epoch, its last, the job's last
    "some": [[0, [0, 1]], [5, [0, 1], [1]], [9, [0, 1], [0]], [12, [0, 1], [1]], [23, [0, 1], [0]]],
    "all ends": [[0, [0, 1]], [6, [0, 1], [1]], [12, [1, 0], [0]], [18, [0, 1, 2], [1]], [LAST, [0, 1, 2], [1, 2]]],
}


@pytest.mark.parametrize("case", ["ordinary", "host", "deciding"])
@pytest.mark.parametrize("timetable", [CHANGING, *MISSING.values()], ids=["changing", *MISSING])
def test_all_workers_read_what_one_worker_alone_does(ranks: Any, case: str, timetable: list[Any]) -> None:
    if case == "deciding":  # which is its job's last is decided behind it
        timetable = [entry for entry in timetable if entry[0] < LAST]
    (alone,) = ranks.outcome(f"seen_cases.{case}", ALONE).states
    *expected, points = json.loads(alone)
    for state in ranks.outcome(f"seen_cases.{case}", timetable).states:
        *found, seen = json.loads(state)
        assert found == expected
        assert len(seen) > 5
        assert {point: points.get(point) for point in seen} == seen


class Turns(_suspension.Turns):  # type: ignore[misc,name-defined]
    """A job that is preempted again and again. Notes what its script reads."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.seen: list[dict[str, list[Any]]] = []

    def _script(self, run: Run) -> dict[str, Any]:
        seen: dict[str, list[Any]] = {}
        self.seen.append(seen)
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        data = torch.randn(32, 3, generator=torch.Generator().manual_seed(1)), torch.ones(32, 1)
        run.prepare(model, optimizer, data, batch_size=4, max_grad_norm=math.inf, scheduler=scheduler)

        def note(point: str) -> None:
            seen[point] = [run.last_lr, run.grad_norm, run.means, run.shared]

        for epoch in run.epochs(3):
            note(f"begin {epoch}")
            for step in run.steps():
                for x, y in step:
                    note(f"step {step.number}")
                    loss = torch.nn.functional.mse_loss(model(x), y)
                    run.share(loss=loss)
                    loss.backward()
            note(f"end {epoch}")
        note("over")
        return dict(model.state_dict())


@pytest.mark.parametrize("boundaries", [5, 6, 7])
def test_a_job_that_goes_on_from_a_checkpoint_reads_what_it_would_have_read(boundaries: int, tmp_path: Path) -> None:
    alone = Turns(tmp_path / "alone")
    _suspension.whole(alone, [10**6])
    turns = Turns(tmp_path / "turns")
    _suspension.whole(turns, itertools.repeat(boundaries, 20))
    assert turns.runs > 2
    for seen in turns.seen:
        assert seen
        assert {point: alone.seen[0][point] for point in seen} == seen
