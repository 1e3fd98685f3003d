"""A job that goes on from a checkpoint in the middle of an epoch, in a new process, names what its script has lost."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from elasticd.worker.collecting import statement_at
from tests.forked import Scripts
from tests.worker.ranks import Ranks, checkpoints
from tests.worker.training_cases import EPOCHS

LOST = {
    "forward_from_an_epoch_on": (r"linear\.forward is .* and not there on this start .*`if epoch >= 1:`",),
    "method_from_an_epoch_on": (r"Scaled \(the class Scaled, restart_cases\.py:\d+\) differs .*`if epoch >= 1:`",),
    "losses_in_a_list": (r"`losses = \[train_step\(batch\) for batch in batches\]` \(restart_cases\.py:\d+\) gets",),
    "numbers_within_an_epoch": (
        r"later ones in i \(restart_cases\.py",
        r"baseline is [\d.]+ on",
        r"meter\.total is [-\d.]+ on",
    ),
}
HARMLESS = {"numbers_within_an_epoch": ("shown is", "shown (")}


@pytest.mark.cluster
@pytest.mark.parametrize("case", LOST)
def test_what_a_restart_in_the_middle_of_an_epoch_loses_is_named(tmp_path: Path, capfd: Any, case: str) -> None:
    """Restarted in epoch 1, whose beginning the new process runs itself, and then in epoch 2."""
    with contextlib.closing(Scripts()) as scripts, contextlib.closing(Ranks(scripts)) as ranks:
        ranks.train(f"restart_cases.{case}", [[0, [0]]], checkpoints=str(tmp_path))
        steps = max(checkpoints(tmp_path)) // EPOCHS
        for epoch in (1, 2):
            for step, path in checkpoints(tmp_path).items():
                if step > (epoch + 0.5) * steps:
                    path.unlink()
            capfd.readouterr()
            ranks.train(f"restart_cases.{case}", [[0, [0]]], checkpoints=str(tmp_path))
    told = capfd.readouterr().err
    assert all(re.search(each, told) for each in LOST[case]), told
    assert not any(each in told for each in HARMLESS.get(case, ())), told


COLLECTS = [
    "losses = list(map(step, batches))",
    "total = sum(step(b) for b in batches)",
    "mean = np.mean([step(b) for b in batches])",
    "return {i: step(b) for i, b in enumerate(batches)}",
    "history += [step(b) for b in batches]",
    "scheduler.step(sum(map(step, batches)))",
]
OTHERS = [
    "for x in batches: step(x)",
    "for x in map(move, batches): step(x)",
    "list(map(step, batches))",
    "deque(map(step, batches), maxlen=0)",
    "print(sum(map(step, batches)))",
    "x, y = [each.to(device) for each in next(batches)]",
    "iterator = iter(batches)",
    "stats = train_epoch(batches)",
    "history.extend(map(step, batches))",
    "shown = list(map(step, batches))",
]


@pytest.mark.parametrize("line", [*COLLECTS, *OTHERS])
def test_a_statement_that_collects_a_value_from_a_pass_is_told_from_others(line: str) -> None:
    tree = ast.parse(f"def train():\n    for epoch in epochs:\n        {line}\n")
    found = statement_at(tree, 3, logged={"shown"})
    assert (found is not None and ast.unparse(found) in ast.unparse(tree)) is (line in COLLECTS)
