"""A resize and a death in the simulated cluster pass the functions that the architecture page names, in its order."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest

from verification.world.scenarios import Stage, command

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).parents[2] / "docs" / "design" / "architecture.md"
ROW = re.compile(r"^\| `([\w/]+\.py):([\w.]+)` \|", re.MULTILINE)

# Modules that run unchanged in the simulated cluster; the shells around them do not.
MACHINES = (
    "agent/machine.py",
    "controller/cluster.py",
    "controller/inbound/",
    "controller/jobs/",
    "controller/machine.py",
    "controller/reconcile/",
    "controller/requests/",
    "controller/state/",
    "controller/turn.py",
    "scheduler/",
    "worker/hosting.py",
    "worker/machine.py",
    "worker/membership/",
    "worker/reporting.py",
    "worker/training/",
)
HISTORIES = {  # setup, and the observed event
    "One resize": (
        ("cluster servers=1 gpus=4", "submit digits gpus=2:2 steps=60", "policy max-min", "run 5s"),
        ("scale digits 4", "run 5s"),
        "resized: 2 -> 4 GPUs",
    ),
    "One worker's death": (
        ("cluster servers=1 gpus=4", "submit digits gpus=4 steps=80", "policy max-min", "run 5s"),
        ("kill worker digits-1.1", "run 5s"),
        "resized: went on after a loss: 4 -> 3 GPUs",
    ),
}


def named(title: str) -> list[tuple[str, str]]:
    """The functions in the tables of one section."""
    (section,) = (part for part in PAGE.read_text().split("\n## ") if part.startswith(f"{title}\n"))
    return [(file, name) for file, name in ROW.findall(section) if file.startswith(MACHINES)]


@cache
def passed(title: str) -> dict[tuple[str, str], int]:
    """The position of each function's first call."""
    before, then, seen = HISTORIES[title]
    stage = Stage()
    for line in before:
        command(stage, line)
    first: dict[tuple[str, str], int] = {}
    calls = iter(range(10**9))

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            first.setdefault((frame.f_code.co_filename, frame.f_code.co_qualname), next(calls))

    sys.setprofile(note)
    try:
        for line in then:
            command(stage, line)
    finally:
        sys.setprofile(None)
    assert any(seen in line for line in stage.lines())
    return {(file.partition("/src/elasticd/")[2], name): when for (file, name), when in first.items()}


def calls(title: str, functions: Sequence[tuple[str, str]]) -> Iterator[tuple[str, int | None]]:
    for file, name in functions:
        yield f"{file}:{name}", passed(title).get((file, name))


@pytest.mark.parametrize("title", HISTORIES)
def test_each_function_of_a_machine_is_passed(title: str) -> None:
    assert not [name for name, at in calls(title, named(title)) if at is None]


@pytest.mark.parametrize(("title", "least"), [("One resize", 20), ("One worker's death", 8)])
def test_the_controller_passes_its_functions_in_the_order_of_the_page(title: str, least: int) -> None:
    of_controller = [(file, name) for file, name in named(title) if file.startswith(("controller/", "scheduler/"))]
    in_order = list(calls(title, of_controller))
    late = [second for (_, before), (second, after) in pairwise(in_order) if (after or 0) < (before or 0)]
    assert len(in_order) >= least
    assert not late


CHANGES = {
    "add",
    "append",
    "clear",
    "discard",
    "extend",
    "pop",
    "popitem",
    "popleft",
    "put",
    "remove",
    "setdefault",
    "update",
}


def written(tree: ast.AST) -> set[str]:
    """Parts of `cluster.history` and `cluster.clients` that the code of a module assigns, deletes or changes in place."""
    found = set()
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [part for target in node.targets for part in ast.walk(target) if isinstance(part, ast.expr)]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            targets = [node.func.value]
        texts = (ast.unparse(target) for target in targets)
        found |= {text for text in texts if re.search(r"cluster\.(history|clients)\.\w", text)}
    return found


def test_events_and_requests_are_changed_by_the_methods_of_their_stores_alone() -> None:
    changed = {
        str(path.relative_to(ROOT)): parts
        for path in sorted((ROOT / "controller").rglob("*.py"))
        if (parts := written(ast.parse(path.read_text())))
    }
    assert not changed
    for code in ("cluster.clients.answers[a] = b", "x, cluster.history.events = y", "del self._cluster.clients.a[b]"):
        assert written(ast.parse(code)), code
    for code in ("cluster.history.events.pop()", "cluster.history.next_number += 1"):
        assert written(ast.parse(code)), code
