"""Processes of a check that are forked from a warm one: they behave as new interpreters, and none is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticd.ctl.check.warm import Forked, Warm, can_fork

SCRIPT = """
import os, random, sys
import torch
print(sys.argv, sys.path[0] == os.getcwd(), __name__, os.environ["GIVEN"], os.path.basename(__file__))
print(random.random(), torch.rand(1).item())
sys.exit(int(sys.argv[1]))
"""


def a_warm(directory: Path) -> Warm:
    return Warm(sys.executable, directory, {**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with contextlib.closing(a_warm(tmp_path_factory.mktemp("warm"))) as warm:
        yield warm


def started(warm: Warm, directory: Path, source: str, *arguments: str) -> tuple[Forked, Path]:
    (directory / "train.py").write_text(source)
    log = directory / "log"
    log.write_text("")
    forked = warm.start([sys.executable, "train.py", *arguments], directory, {**os.environ, "GIVEN": "of its own"}, log)
    assert forked is not None
    return forked, log


def test_a_forked_script_has_its_arguments_directory_environment_and_exit_code(warm: Warm, tmp_path: Path) -> None:
    forked, log = started(warm, tmp_path, SCRIPT, "3")
    assert forked.wait(60) == 3
    assert log.read_text().splitlines()[0] == "['train.py', '3'] True __main__ of its own train.py"


def test_two_forked_scripts_draw_other_random_numbers(warm: Warm, tmp_path: Path) -> None:
    drawn = []
    for _ in range(2):
        forked, log = started(warm, tmp_path, SCRIPT, "0")
        assert forked.wait(60) == 0
        drawn.append(log.read_text().splitlines()[1].split())
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def test_a_killed_script_reports_the_signal(warm: Warm, tmp_path: Path) -> None:
    forked, _ = started(warm, tmp_path, "import time\ntime.sleep(600)\n")
    os.killpg(forked.pid, signal.SIGKILL)  # its process group is its own
    assert forked.wait(60) == -signal.SIGKILL


def test_forked_scripts_end_with_the_warm_process(tmp_path: Path) -> None:
    warm = a_warm(tmp_path)
    forked, _ = started(warm, tmp_path, "import time\ntime.sleep(600)\n")
    warm.close()
    until = time.monotonic() + 60
    while Path(f"/proc/{forked.pid}/cmdline").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not Path(f"/proc/{forked.pid}/cmdline").exists()
    assert forked.wait(1) == -signal.SIGKILL


def test_a_script_that_fails_tells_its_traceback_alone(warm: Warm, tmp_path: Path) -> None:
    forked, log = started(warm, tmp_path, "def train():\n    raise ValueError('no data')\n\n\ntrain()\n")
    assert forked.wait(60) == 1
    lines = log.read_text().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('train.py", line 5, in <module>')
    assert lines[-1] == "ValueError: no data"


def test_without_torch_nothing_is_forked(tmp_path: Path) -> None:
    (tmp_path / "elasticd").mkdir()
    (tmp_path / "elasticd" / "__init__.py").write_text("raise ImportError('another package of this name')\n")
    warm = Warm(sys.executable, tmp_path, {**os.environ})
    try:
        assert warm.start([sys.executable, "train.py"], tmp_path, {}, tmp_path / "log") is None
    finally:
        warm.close()


@pytest.mark.parametrize(
    ("command", "can"),
    [
        (["python", "train.py", "--lr", "1"], True),
        (["/usr/bin/python3.11", "-m", "package", "--lr", "1"], True),
        (["python", "-O", "train.py"], False),
        (["nice", "python", "train.py"], False),
        (["./train.sh"], False),
        (["python", "-c", "print()"], False),
        (["python", "-m", "torch.distributed.run", "train.py"], False),
    ],
)
def test_only_a_plain_start_of_python_is_forked(command: list[str], can: bool) -> None:
    assert can_fork(command) is can
