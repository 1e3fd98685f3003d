"""The simulated cluster has virtual time and no effects: it does not even import modules for threads, sockets or processes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

WORLD = Path(__file__).parents[2] / "verification" / "world"
EFFECTS = {"asyncio", "multiprocessing", "socket", "subprocess", "threading", "torch", "zmq"}
RUNNERS = {"__main__.py", "campaign.py", "crash_anywhere.py", "planted.py"}  # they run simulations in parallel
MODULES = sorted(path for path in WORLD.glob("*.py") if path.name not in RUNNERS)


def imported(source: str) -> set[str]:
    """Top-level names of a module's imports from elsewhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_no_module_of_the_simulated_cluster_has_effects(module: Path) -> None:
    assert imported(module.read_text()) & EFFECTS == set()


def test_imports_are_found_wherever_they_stand() -> None:
    assert imported("def f():\n    import os.path\n    from zmq.error import ZMQError\nfrom . import threading") == {
        "os",
        "zmq",
    }
