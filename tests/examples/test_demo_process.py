"""The demo as a process: it leaves nothing behind, whenever and however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 300.0  # on a loaded machine


def processes_of(directory: Path, but: int) -> list[str]:
    """Command lines of all processes that mention `directory`, in their arguments or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            words, environment = process.cmdline(), process.environ()
        except psutil.Error:
            continue
        if process.pid not in (but, os.getpid()) and any(
            str(directory) in text for text in (*words, *environment.values())
        ):
            found.append(" ".join(words))
    return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo with its temporary directory under `tmp_path`, its output piped."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    if process.poll() is None:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"ended without saying {text!r}: {process.communicate()[1]}")


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("elasticctl up", signal.SIGINT),
        ("elasticctl submit", signal.SIGHUP),
        ("digits-1 is starting", signal.SIGTERM),
        ("digits-1 trains", signal.SIGINT),
    ],
)
def test_a_signal_at_any_moment_ends_the_demo_and_everything_that_it_started(
    demo: subprocess.Popen[str], tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    read_until(demo, moment)
    demo.send_signal(number)
    demo.send_signal(number)  # once more, as an impatient user does
    said, errors = demo.communicate(timeout=DEADLINE_S)
    assert errors == ""
    assert "no process is left behind" in said
    assert demo.returncode == 128 + number
    assert processes_of(tmp_path, demo.pid) == []
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_ends_the_demo_and_everything_that_it_started(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    read_until(demo, "elasticctl submit")
    assert demo.stdout is not None
    demo.stdout.close()
    deadline = time.monotonic() + DEADLINE_S
    while demo.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert demo.returncode == 128 + signal.SIGPIPE
    assert demo.stderr is not None
    assert demo.stderr.read() == ""
    assert processes_of(tmp_path, demo.pid) == []
