"""Fixtures of tests that execute `elasticctl`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .command import Cli


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    base = tmp_path_factory.mktemp("cli")
    (base / "sleep.yaml").write_text("name: sleep\ncommand: sleep 60\ngpus: 1\n")
    (base / "train.py").write_text("print('hello'); raise SystemExit(3)\n")
    command = Cli(base / "cluster", base)
    command("up", "--gpus", "2")
    yield command
    command("down", "--purge", "--yes")


@pytest.fixture
def offline(tmp_path: Path) -> Cli:
    """No cluster: for commands that are refused before one is contacted."""
    (tmp_path / "sleep.yaml").write_text("name: sleep\ncommand: sleep 60\ngpus: 1\n")
    return Cli(tmp_path / "cluster", tmp_path)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Cli]:
    """No cluster yet; a cluster that a test starts is stopped."""
    command = Cli(tmp_path / "cluster", tmp_path)
    yield command
    command("down", "--purge", "--yes")
    assert command.processes() == []
