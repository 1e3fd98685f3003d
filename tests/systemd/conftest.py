"""Shared fixtures of the units' tests: systemd's tools, the installed units, and an installed machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tools() -> None:
    """Skip the test without systemd-analyze and related tools, with the reason."""
    done = subprocess.run([ROOT / "scripts/need-systemd"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(done.stderr.strip())


@pytest.fixture(scope="session")
def units(tools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the units as `make install PREFIX=...` would write them, and that prefix with an interpreter in it."""
    directory = tmp_path_factory.mktemp("units")
    (directory / "bin").mkdir()
    (directory / "bin/python").symlink_to(sys.executable)
    for unit in (ROOT / "systemd").glob("*.service"):
        (directory / unit.name).write_text(unit.read_text().replace("/opt/elasticctl/", f"{directory}/"))
    return directory


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a machine with only the files of `make install`."""
    directory = tmp_path_factory.mktemp("stage")
    run_make(directory)
    return directory


@pytest.fixture(scope="session")
def install() -> Callable[..., str]:
    """`make install` below a directory: install(DIRECTORY, TARGET, PREFIX=...)."""
    return run_make


def run_make(directory: Path, target: str = "install", **variables: str) -> str:
    """Output of make. AssertionError with the output if it failed."""
    given = [f"{name}={value}" for name, value in {"DESTDIR": str(directory), **variables}.items()]
    # variables of `make test` must not reach this make
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "-C", str(ROOT), "--no-print-directory", target, *given],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
