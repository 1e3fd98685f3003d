"""Processes of a measurement and their descendants, all ended together, however the measurement ends.

Cluster daemons detach themselves, and torchrun's workers have their own sessions. Orphans below this process are reparented to it
(PR_SET_CHILD_SUBREAPER), so all of them are its descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, TypeVar

import psutil

ROOT = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36
GONE_WITHIN_S = 10.0
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
T = TypeVar("T")


class MeasurementFailed(Exception):
    """A condition was not reached; the text says which, and how far it got."""


class Family:
    """A context manager: on exit, by any path, no descendant of this process is left."""

    def __enter__(self) -> Family:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave the rest behind
        end_tree(os.getpid(), itself=False)

    def start(
        self,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process with one thread per operation, with its output in `log`."""
        environment = {**os.environ, **ONE_THREAD, **(variables or {})}
        with (log or Path(os.devnull)).open("ab") as said:
            return subprocess.Popen(
                list(command),
                cwd=ROOT,
                env=environment,
                stdin=stdin,
                stdout=said if stdout is None else stdout,
                stderr=said,
                start_new_session=True,
            )


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def end_tree(pid: int, itself: bool = True) -> None:
    """Send SIGKILL to a process and all its descendants, and wait until they are gone."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < deadline:
        try:
            top = psutil.Process(pid)
            found = [top, *top.children(recursive=True)] if itself else top.children(recursive=True)
        except psutil.NoSuchProcess:
            return
        if not found:
            return
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=1.0)
    raise MeasurementFailed(f"processes below {pid} do not end")


def until(what: str, probe: Callable[[], T | None], timeout_s: float, interval_s: float = 0.05) -> T:
    """Poll `probe` until it returns a value other than None. Raises MeasurementFailed at the timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (found := probe()) is not None:
            return found
        time.sleep(interval_s)
    raise MeasurementFailed(f"not within {timeout_s:.0f} s: {what}")


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package."""
    return [sys.executable, "-m", f"benchmarks.runtime.{name}", *arguments]
