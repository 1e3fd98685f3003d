"""The page about one resize is right: a resize in the simulated cluster passes the functions that it names, in its order."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest

from verification.world.scenarios import Stage, command

PAGE = Path(__file__).parents[2] / "docs" / "design" / "one-resize.md"
ROW = re.compile(r"^\| `([\w/]+\.py):([\w.]+)` \|", re.MULTILINE)

# What runs in the simulated cluster as it does in a real one; shells do not.
MACHINES = (
    "agent/machine.py",
    "controller/cluster.py",
    "controller/intake/",
    "controller/jobs/",
    "controller/machine.py",
    "controller/reconcile/",
    "controller/requests/answers.py",
    "controller/requests/acts.py",
    "controller/requests/finding.py",
    "scheduler/",
    "worker/hosting.py",
    "worker/machine.py",
    "worker/membership/",
    "worker/progress.py",
    "worker/reporting.py",
    "worker/state/transfer_plan.py",
    "worker/training/",
)


def parts() -> list[list[tuple[str, str]]]:
    """The functions of machines that the page names in its tables, part by part."""
    return [
        [(file, name) for file, name in ROW.findall(part) if file.startswith(MACHINES)]
        for part in PAGE.read_text().split("\n## ")[1:]
    ]


@pytest.fixture(scope="module")
def passed() -> dict[tuple[str, str], int]:
    """When each function was first called after somebody had scaled a job from 2 to 4 GPUs of its server."""
    stage = Stage()
    for line in ("cluster servers=1 gpus=4", "submit digits gpus=2:2 steps=60", "policy max-min", "run 5s"):
        command(stage, line)
    first: dict[tuple[str, str], int] = {}
    calls = iter(range(10**9))

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            first.setdefault((frame.f_code.co_filename, frame.f_code.co_qualname), next(calls))

    sys.setprofile(note)
    try:
        command(stage, "scale digits 4")
        command(stage, "run 5s")
    finally:
        sys.setprofile(None)
    assert any("resized: 2 -> 4 GPUs" in line for line in stage.lines())
    return {(file.partition("/src/elasticd/")[2], name): when for (file, name), when in first.items()}


def when(passed: dict[tuple[str, str], int], functions: list[tuple[str, str]]) -> Iterator[tuple[str, int | None]]:
    """Of a class its constructor."""
    for file, name in functions:
        yield f"{file}:{name}", passed.get((file, name), passed.get((file, f"{name}.__init__")))


def test_each_function_of_a_machine_is_passed(passed: dict[tuple[str, str], int]) -> None:
    missed = [name for part in parts() for name, at in when(passed, part) if at is None]
    assert not missed


def test_the_controller_passes_its_functions_in_the_order_of_the_page(passed: dict[tuple[str, str], int]) -> None:
    in_order = [at for part in parts()[1:4] for at in when(passed, part)]
    late = [
        second
        for (_, before), (second, after) in pairwise(in_order)
        if before is None or after is None or after < before
    ]
    assert len(in_order) > 40
    assert not late
