"""Hosts for a test: namespaces of this machine (`verification.hosts.lab`), removed after it."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

if TYPE_CHECKING:
    from verification.hosts.lab import Lab
    from verification.soak.stories import Story


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """A factory: `make_lab(NAME..., users=(NAME...), ssh=True)`. All hosts share the test's directory `tmp_path/shared`."""
    from verification.hosts.lab import Lab, NotPermitted

    with ExitStack() as stack:

        def make(
            *names: str,
            users: tuple[str, ...] = (),
            ssh: bool = False,
            layers: tuple[Path, ...] = (),
            shared: Mapping[Path, str] | None = None,
        ) -> Lab:
            if shared is None:
                directory = tmp_path / "shared"
                directory.mkdir(exist_ok=True)
                directory.chmod(0o1777)
                shared = {directory: str(directory)}
            if ssh:
                done = subprocess.run([ROOT / "scripts/need-sshd"], capture_output=True, text=True)
                if done.returncode:
                    pytest.skip(done.stderr.strip())
            try:
                lab = stack.enter_context(Lab(names, shared, layers))
            except NotPermitted as reason:
                pytest.skip(str(reason))
            for user in users:
                lab.add_user(user)
            if ssh:
                lab.serve_ssh(["root", *users])
            return lab

        yield make


@pytest.fixture
def same_bits() -> Callable[..., None]:
    """`same_bits(OUTPUT, ALONE, ARGUMENT...)`: the result of a job equals that of `python train_small.py` alone, bit for bit."""
    smoke = importlib.import_module("tests.cluster.test_smoke")

    def same(output: Path, alone: Path, *arguments: str, virtual_workers: int) -> None:
        smoke.assert_same_bits(smoke.load(output), smoke.alone(alone, *arguments, virtual_workers=virtual_workers))

    return same


@pytest.fixture
def make_story(make_lab: Callable[..., Lab], tmp_path: Path) -> Iterator[Callable[..., Story]]:
    """A factory: `make_story(hosts, slots)`, a cluster on so many hosts (`verification.soak.stories`)."""
    from verification.hosts.links import Links
    from verification.soak.stories import Story

    with ExitStack() as stack:

        def make(hosts: int, slots: int, versions: Mapping[Any, Path] | None = None) -> Story:
            lab = make_lab(*(f"h{number + 1}" for number in range(hosts)))
            directory = tmp_path / "shared"
            directory.chmod(0o755)
            story = Story(lab, stack.enter_context(Links(lab)), directory, slots, versions)
            stack.callback(story.desk.close)
            return story

        yield make
