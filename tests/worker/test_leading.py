"""Leader-only code in a loop body shifts no random draws of the forward pass; where it may, the script gets a warning."""

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

def is_main():
    return run.is_leader

{first}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 4), nn.Dropout({dropout}), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join(virtual_workers=2)
model, optimizer, batches = run.prepare(model, optimizer, (torch.randn(16, 2),), batch_size=2)
total, history = 0.0, []
for epoch in run.epochs(2):
    master_process = is_main()
    for (x,) in batches:
{before}
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
{behind}
"""


TRACED = "import sys; sys.settrace(lambda *_: None)"
DRAWS = [
    ("if run.is_leader and run.steps_done % 3 == 0:\n    print(estimate())", "estimate"),
    ("if run.steps_done == 2 and run.rank == 0:\n    random.random()", "random.random"),
    ("main = run.is_leader\nif main:\n    with torch.no_grad():\n        model(x)", "model"),
    ("if not run.is_leader:\n    pass\nelse:\n    y = torch.randn(3)", "torch.randn"),
]


def done(
    scripts: Scripts,
    directory: Path,
    before: str,
    behind: str = "pass",
    dropout: float = 0.5,
    first: str = "",
) -> tuple[list[str], str]:
    """Return the warnings, and the final weights."""
    path = directory / "train.py"
    body = {name: textwrap.indent(text, " " * 8) for name, text in (("before", before), ("behind", behind))}
    path.write_text(SCRIPT.format(dropout=dropout, first=first, **body) + "print('weights', model.state_dict())\n")
    ended = scripts.run(path, cwd=directory)
    assert ended.returncode == 0, ended.stderr
    warned = [line for line in ended.stderr.splitlines() if "is read in the loop body" in line]
    return warned, ended.stdout.partition("weights")[2]


def told(scripts: Scripts, directory: Path, before: str, behind: str = "pass", dropout: float = 0.5) -> list[str]:
    return done(scripts, directory, before, behind, dropout, TRACED)[0]


@pytest.mark.parametrize(
    "before",
    [
        *(before for before, _ in DRAWS),
        "if run.is_leader: print(estimate())",
        "if is_main():\n    for _ in range(2):\n        print(estimate())",
        "if master_process and run.steps_done % 3 == 0:\n    print(estimate())",
        "def log():\n    if run.is_leader:\n        print(estimate())\nlog()",
        "x = x + torch.rand_like(x)\nif run.is_leader:\n    print(estimate())\nx = x * torch.rand_like(x)",
    ],
)
def test_what_the_leader_draws_before_the_step_shifts_nothing(scripts: Scripts, tmp_path: Path, before: str) -> None:
    warned, weights = done(scripts, tmp_path, before)
    assert warned == []
    without = before.replace("print(estimate())", "print(0)") if "estimate" in before else "pass"
    assert weights == done(scripts, tmp_path, without)[1] != ""


@pytest.mark.parametrize(("before", "call"), DRAWS)
def test_random_draws_of_the_leader_are_reported_once_with_their_line(
    scripts: Scripts, tmp_path: Path, before: str, call: str
) -> None:
    (line,) = told(scripts, tmp_path, before)
    assert f"(train.py:{23 + before.count('main =')})" in line
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
def test_code_of_the_leader_without_an_effect_on_draws_is_not_reported(
    scripts: Scripts, tmp_path: Path, before: str, behind: str, dropout: float
) -> None:
    assert told(scripts, tmp_path, before, behind, dropout) == []
