"""Processes of a local cluster: finding and ending them.

The cluster's record lists the daemons, and the agents' records list the workers, each with a process number and a start
time, so that a stale record never hits another process. A record may be missing (`up` was killed between a start and
the writing, or a user has removed the directory). Command lines serve as a second source, as they contain paths that
identify the cluster: the configuration file of a daemon, the job's directory of a shim, the agent's state directory of
a warm process. A cluster in a subdirectory is another cluster. A worker ends with its shim.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ..runtime.processes import runs, send, start_ticks
from .record import Daemon

STOP_GRACE_S = 3.0
GONE_WITHIN_S = 15.0


class _Running(msgspec.Struct, frozen=True):
    """Process numbers of the cluster's running processes."""

    daemons: tuple[int, ...]
    shims: tuple[int, ...]
    workers: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        return self.daemons + self.shims + self.workers


def daemon_runs(directory: Path, daemons: Mapping[str, Daemon], name: str) -> bool:
    """Return whether the daemon `name` of the cluster in `directory` runs."""
    daemon = daemons.get(name)
    if daemon is not None and daemon.runs:
        return True
    configuration = directory / f"{name}.yaml"
    return any(_configuration(line) == configuration for _, line in _command_lines())


def anything_runs(directory: Path) -> bool:
    """Return whether any process of the cluster in `directory` runs, as far as the directory and command lines reveal
    without the list of daemons.
    """
    return bool(_running(directory, {}).all)


def end_daemons(directory: Path, daemons: Mapping[str, Daemon], names: Sequence[str]) -> None:
    """End these daemons of the cluster in `directory`, but not the processes they have started. A daemon that does not
    end is left.
    """
    began = time.monotonic()
    while time.monotonic() < began + GONE_WITHIN_S:
        files = {directory / f"{name}.yaml" for name in names}
        found = _merged(
            [daemons[name].pid for name in names if name in daemons and daemons[name].runs],
            [pid for pid, line in _command_lines() if _configuration(line) in files] if names else [],
        )
        if not found:
            return
        _send(found, signal.SIGKILL if time.monotonic() > began + STOP_GRACE_S else signal.SIGTERM)
        _reap()
        time.sleep(0.05)


def stop_everything(directory: Path, daemons: Mapping[str, Daemon]) -> tuple[int, ...]:
    """End all processes, gently first. Returns the processes that remain."""
    began = time.monotonic()
    while (found := _running(directory, daemons)).all and time.monotonic() < began + GONE_WITHIN_S:
        late = time.monotonic() > began + STOP_GRACE_S
        if found.daemons:  # first, so that no daemon starts workers again
            _send(found.daemons, signal.SIGKILL if late else signal.SIGTERM)
        elif not late:
            _send(found.shims, signal.SIGTERM)
        elif found.workers:
            _send(found.workers, signal.SIGKILL, group=True)
        else:
            _send(found.shims, signal.SIGKILL)
        _reap()
        time.sleep(0.05)
    return found.all


def _running(directory: Path, daemons: Mapping[str, Daemon]) -> _Running:
    workers = _worker_files(directory)
    lines = list(_command_lines())
    return _Running(
        daemons=_merged(
            [daemon.pid for daemon in daemons.values() if daemon.runs],
            [pid for pid, line in lines if (file := _configuration(line) or _warm(line)) and file.parent == directory],
        ),
        shims=_merged(
            [w.shim_pid for w in workers if w.shim_pid and runs(w.shim_pid, w.shim_start_ticks)],
            [pid for pid, line in lines if (job := _job_directory(line)) and job.parents[2:3] == (directory,)],
        ),
        workers=tuple(w.pid for w in workers if w.pid and runs(w.pid, w.start_ticks)),
    )


def _merged(recorded: list[int], seen: list[int]) -> tuple[int, ...]:
    return tuple(sorted({*recorded, *seen}))


class _WorkerFile(msgspec.Struct, frozen=True):
    """An agent's record of a worker, as its shim writes it."""

    shim_pid: int | None = None
    shim_start_ticks: int | None = None
    pid: int | None = None
    start_ticks: int | None = None


def _worker_files(directory: Path) -> list[_WorkerFile]:
    found = []
    for path in sorted(directory.glob("*/jobs/*/*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # the record is being removed, or was never finished
            found.append(msgspec.json.decode(path.read_bytes(), type=_WorkerFile))
    return found


def _command_lines() -> Iterator[tuple[int, list[bytes]]]:
    """Yield number and arguments of each process of this user that still runs."""
    for entry in sorted(name for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(OSError):  # the process has just ended
            if os.stat(f"/proc/{entry}").st_uid == os.geteuid():
                arguments = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                if start_ticks(int(entry)) is not None:
                    yield int(entry), arguments


def _configuration(line: list[bytes]) -> Path | None:
    """Return the configuration file, if this is the command line of a daemon."""
    match line:
        case [_, b"-m", b"elasticd.controller" | b"elasticd.agent", b"--config", path, *_]:
            return Path(os.fsdecode(path))
    return None


def _warm(line: list[bytes]) -> Path | None:
    """Return its agent's state directory, if this is the command line of a process from which workers are forked."""
    match line:
        case [_, b"-m", b"elasticd.agent.forkserver.server", path, *_]:
            return Path(os.fsdecode(path))
    return None


def _job_directory(line: list[bytes]) -> Path | None:
    """Return the job's directory (CLUSTER/SERVER/jobs/JOB), if this is the command line of a shim."""
    match line:
        case [_, b"-I", b"-S", program, path, *_] if program.endswith(b"/agent/shim.py"):
            return Path(os.fsdecode(path))
    return None


def _send(pids: tuple[int, ...], number: signal.Signals, group: bool = False) -> None:
    for pid in pids:
        send(pid, number, group)


def _reap() -> None:
    """Reap daemons that this very process has started (in an `up` that failed): they are its children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
