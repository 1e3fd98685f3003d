"""Analysis of `run.save` calls in a script's source: the saved values, and calls of the leader alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from elasticd.worker.source.save_calls import is_for_leader, saved_names


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("run.save({'ema': shadow}, 'x.pt')", {"shadow"}),
        ("run.save(model, 'x.pt')", {"model"}),
        ("best = {'w': ema.shadow}\nbest['h'] = history\nrun.save(best, 'x.pt')", {"best", "ema.shadow", "history"}),
        ("if loss < best:\n    run.save(model, 'x.pt')", {"loss", "best", "model"}),
        ("def keep():\n    run.save(history, 'x.pt')", {"history"}),
        ("if run.is_leader:\n    run.save(history, 'x.pt')", set()),
        ("if not run.is_leader:\n    wait()\nelse:\n    torch.save(history, 'x.pt')", set()),
        ("def keep(state, path):\n    run.save(state, path)\nkeep({'h': history}, 'x.pt')", {"history"}),
        ("def keep(best):\n    if loss < best:\n        run.save(1, 'x.pt')\nkeep(lowest)", {"loss", "lowest"}),
        ("def keep(run, *, log):\n    run.save(log, 'x.pt')\nkeep(run, log=history)", {"history"}),
        ("class T:\n    def keep(self, log):\n        run.save(log, 'x.pt')\nt.keep(history)", {"history"}),
        ("def score():\n    total = 1\n    return total\nrun.save(score(), 'x.pt')", set()),
        ("def score():\n    return kept, other\nbest, rest = score()\nrun.save(best, 'x.pt')", {"best", "kept"}),
        ("def score():\n    return kept, other\nrun.save(score(), 'x.pt')", {"kept", "other"}),
        ("def score():\n    return pair\nbest, rest = score()\nrun.save(best, 'x.pt')", {"best", "pair"}),
        ("def other():\n    mean = 0\n    run.save(mean, 'x.pt')\nmean = 1", set()),
        ("def other():\n    global mean\n    mean = 0\n    run.save(mean, 'x.pt')", {"mean"}),
        ("model, batches = run.prepare(model, dataset)\nrun.save(model, 'x.pt')", {"model"}),
        ("run.save({'accuracy': score(model, loader), 'e': len(epochs)}, 'x.pt')", {"epochs"}),
        ("for e in run.epochs(3):\n    for b in batches:\n        step(b)\n    if bad >= 2:\n        break", {"bad"}),
        ("for e in range(3):\n    if bad:\n        break", set()),
        ("if loss < best:\n    kept = shadow\nrun.save(kept, 'x.pt')", {"kept", "loss", "best", "shadow"}),
        ("class T:\n    def end(self):\n        run.save({'h': self.best[0]}, 'x.pt')", set()),
        (
            "if a > best:\n    kept = copy(model)\nmodel.load_state_dict(kept)\nrun.save(model, 'x.pt')",
            {"model", "kept", "a", "best"},
        ),
        ("print(total)", set()),
    ],
)
def test_variables_that_go_into_a_file_are_found(source: str, names: set[str]) -> None:
    assert saved_names(ast.parse(source)) == names


def test_an_attribute_of_another_class_is_not_one_of_the_loops_object() -> None:
    tree = ast.parse(
        """
class Meter:
    def last(self):
        return self.scores[-1]

class Best(Meter):
    pass

class Base:
    def end(self):
        run.save({"best": self.best, "score": self.meter.last()}, "x.pt")

class Trainer(Base):
    def train(self):
        for epoch in run.epochs(2):
            self.end()
"""
    )
    method = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "train")
    assert saved_names(tree, method) == {"self.best", "self.meter"}


def test_variables_of_the_loop_s_function_that_another_one_saves_are_found() -> None:
    source = """
def train(run):
    history, mean = [], 0
    for epoch in run.epochs(3):
        history.append(mean)
    return history

def main():
    log = train(run)
    mean = log[-1]
    run.save({"log": log}, "x.pt")
    other(mean)
"""
    tree = ast.parse(source)
    assert saved_names(tree, tree.body[0]) == {"history"}


LEADERS = [
    "if run.is_leader:\n    save()",
    "if run.is_leader and loss < best:\n    save()",
    "main = run.rank == 0\nif main:\n    save()",
    "if run.rank != 0:\n    pass\nelse:\n    save()",
    "def keep():\n    save()\nif args.local_rank == 0:\n    keep()",
    "def keep():\n    if not run.is_leader:\n        return\n    save()\nkeep()",
]
OTHERS = [
    "save()",
    "if loss < best:\n    save()",
    "mine = 1 if run.rank else 0\nif mine < best:\n    save()",
    "if not run.is_leader:\n    save()",
    "if run.is_leader:\n    pass\nsave()",
    "rank_loss = 1\nif rank_loss:\n    save()",
]


class Run:
    is_leader, rank, local_rank = True, 0, 0


@pytest.mark.parametrize(
    ("source", "leaders"), [*((each, True) for each in LEADERS), *((each, False) for each in OTHERS)]
)
def test_a_call_that_only_the_leader_comes_to_is_known(
    source: str, leaders: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run()
    if "not run.is_leader" in source and not leaders:
        run.is_leader = False  # type: ignore[misc]
    found: list[bool] = []

    def save() -> None:
        caller: FrameType | None = sys._getframe(1)
        found.append(is_for_leader(caller))

    file = tmp_path / "script.py"
    file.write_text(source)
    names: dict[str, Any] = {"run": run, "args": run, "save": save, "loss": 1, "best": 2}
    exec(compile(source, str(file), "exec"), names)
    assert found == [leaders]
