"""Processes of a check, forked from a process that has imported torch (`agent.forkserver.check_server`).

A check runs the script a dozen times. As new interpreters these processes would spend four fifths of their time on
imports. A joining worker of a job is forked as well, so the script runs as it does there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..commands import look_at

PROGRAM = "elasticd.agent.forkserver.check_server"
PRELUDE = "elasticd.worker.warm_check"
PADDING = 4096  # bytes reserved in the command line, so that `ps` can show that of the script
POLL_S = 0.005
LOADED_WITHIN_S = 120.0  # importing torch takes seconds, and longer from a busy disk
FORKED_WITHIN_S = 30.0


class Forked:
    """A forked process, with the methods of `subprocess.Popen` that a check needs."""

    def __init__(self, warm: Warm, pid: int) -> None:
        self._warm = warm
        self.pid = pid

    def poll(self) -> int | None:
        return self._warm.code_of(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Warm:
    """The warm process of one check, for one directory and one environment."""

    def __init__(self, interpreter: str, directory: Path, environment: Mapping[str, str]) -> None:
        """Start the warm process. Raises OSError."""
        self._codes: dict[int, int] = {}
        self._began: list[int] = []
        self._ready: str | None = None
        self._gone = False
        self._rest = b""
        command = [interpreter, "-m", PROGRAM, str(os.getpid()), PRELUDE, "-" * PADDING]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._out.fileno(), False)

    def start(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], log: Path
    ) -> Forked | None:
        """Fork a process that runs `command`, which `can_fork` accepts; None: start an interpreter instead."""
        if not self._has_loaded():
            return None
        found = look_at(command)
        request = {
            "command": list(command),
            "module": bool(found.module),
            "name": found.module or found.script,
            "arguments": list(command[3 if found.module else 2 :]),
            "directory": str(directory),
            "environment": dict(environment),
            "log": str(log),
        }
        try:
            self._in.write(json.dumps(request).encode() + b"\n")
            self._in.flush()
        except OSError:
            return None
        if not self._wait_for(lambda: bool(self._began), FORKED_WITHIN_S):
            self._process.kill()  # it may still fork the command, which must not run twice
            return None
        return Forked(self, self._began.pop())

    def code_of(self, pid: int) -> int | None:
        """Return the exit code of a forked process, negative for a signal; None if it runs.

        The process does not outlive the warm process.
        """
        self._read()
        return self._codes.get(pid, -signal.SIGKILL if self._gone else None)

    def close(self) -> None:
        """End the process, and all that were forked from it."""
        self._process.kill()
        self._process.wait()
        self._read()
        self._gone = True
        self._in.close()
        self._out.close()

    def _has_loaded(self) -> bool:
        return self._wait_for(lambda: self._ready is not None, LOADED_WITHIN_S) and self._ready == ""

    def _wait_for(self, come: Callable[[], bool], within_s: float) -> bool:
        until = time.monotonic() + within_s
        while not come():
            self._read()
            if come():
                break
            if self._gone or time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def _read(self) -> None:
        while not self._gone:
            piece = self._out.read(1 << 16)
            if piece is None:
                break
            self._gone = not piece
            self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            document = json.loads(line)
            if "ready" in document:
                self._ready = document["ready"]
            elif "began" in document:
                self._began.append(document["began"])
            else:
                self._codes[document["ended"]] = document["code"]


def can_fork(command: Sequence[str]) -> bool:
    """Return whether a command is `python SCRIPT …` or `python -m MODULE …`, without options of Python and wrappers."""
    found = look_at(command)
    if found.launcher or found.interpreter != command[0]:
        return False
    return list(command[1:2]) == [found.script] or bool(found.module and list(command[1:3]) == ["-m", found.module])
