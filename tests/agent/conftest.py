"""Fixtures of tests with jobs of other accounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .accounts_stories import Agent, public_directory, python_for_all


@pytest.fixture(scope="module")
def python() -> tuple[str, dict[str, str]]:
    """An interpreter with our packages that every account can execute, and the variables that it needs."""
    if (found := python_for_all()) is None:
        pytest.skip("no interpreter that other accounts can execute")
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as path:
        yield path


@pytest.fixture
def agent(place: Path) -> Iterator[Agent]:
    agent = Agent(place)
    yield agent
    agent.close()


@pytest.fixture
def open_to_all(place: Path) -> Path:
    """A directory in which every account can write."""
    path = place / "all"
    path.mkdir()
    path.chmod(0o1777)
    return path
