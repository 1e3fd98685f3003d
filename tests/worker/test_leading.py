"""Leader-only code in a loop body: a warning where it may shift random draws of the forward pass, and only there."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ..forked import Scripts

SCRIPT = """
import random, warnings
import torch
from torch import nn
import elasticd as elastic

def estimate():
    return model(torch.randn(4, 2)).sum()

model = nn.Sequential(nn.Linear(2, 4), nn.Dropout({dropout}), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join(virtual_workers=2)
model, optimizer, batches = run.prepare(model, optimizer, (torch.randn(16, 2),), batch_size=2)
total, history = 0.0, []
for epoch in run.epochs(2):
    for (x,) in batches:
{before}
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
{behind}
"""


def told(scripts: Scripts, directory: Path, before: str, behind: str = "pass", dropout: float = 0.5) -> list[str]:
    path = directory / "train.py"
    body = {name: textwrap.indent(text, " " * 8) for name, text in (("before", before), ("behind", behind))}
    path.write_text(SCRIPT.format(dropout=dropout, **body))
    done = scripts.run(path, cwd=directory)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "is read in the loop body" in line]


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("if run.is_leader and run.steps_done % 3 == 0:\n    print(estimate())", "estimate"),
        ("if run.steps_done == 2 and run.rank == 0:\n    random.random()", "random.random"),
        ("main = run.is_leader\nif main:\n    with torch.no_grad():\n        model(x)", "model"),
        ("if not run.is_leader:\n    pass\nelse:\n    y = torch.randn(3)", "torch.randn"),
    ],
)
def test_what_the_leader_may_draw_before_the_step_is_told_once_with_its_line(
    scripts: Scripts, tmp_path: Path, before: str, call: str
) -> None:
    (line,) = told(scripts, tmp_path, before)
    assert f"(train.py:{17 + before.count('main =')})" in line
    assert f"and calls {call}()" in line
    assert "run.every(steps=…)" in line


@pytest.mark.parametrize(
    ("before", "behind", "dropout"),
    [
        ("if run.is_leader:\n    print(f'{total:.3f}', len(history))", "pass", 0.5),  # draws nothing
        ("pass", "if run.is_leader:\n    print(estimate())", 0.5),  # shifts nothing
        ("if run.is_leader:\n    helper = dict(a=estimate.__name__)", "pass", 0.5),
        ("if run.is_leader:\n    print(sorted(str(each) for each in model.modules()))", "pass", 0.0),
    ],
)
def test_what_the_leader_does_without_an_effect_on_draws_is_not_told(
    scripts: Scripts, tmp_path: Path, before: str, behind: str, dropout: float
) -> None:
    assert told(scripts, tmp_path, before, behind, dropout) == []
