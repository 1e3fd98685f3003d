"""A cluster for the length of a demo, driven the way a user drives one: through ``elasticctl``.

All processes of the cluster carry the path of its temporary directory in their command lines or environments. The demo
finds them by that path at the end, independently of the cluster's own records.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from elasticd.ctl.client import Client
from elasticd.ctl.local import read_address
from elasticd.protocol.messages import Answer, Request

from .errors import DemoFailed

ROOT = Path(__file__).resolve().parents[2]  # of the repository: job files name scripts relative to it
POLL_INTERVAL_S = 0.05
COMMAND_TIMEOUT_S = 180.0  # generous, since other load may slow the command
ANSWER_TIMEOUT_S = 3.0
EXIT_GRACE_S = 30.0


@dataclass(frozen=True)
class Outcome:
    """Output of a command, and how it ended."""

    exit_code: int
    answer: str
    errors: str

    @property
    def text(self) -> str:
        return (self.answer if self.exit_code == 0 else self.errors or self.answer).strip()


class Command:
    """One call of ``elasticctl`` that runs while the demo goes on."""

    def __init__(self, words: list[str], environment: dict[str, str], told: Path) -> None:
        """told: a file name to which endings are added, for the command's output."""
        # Files, not pipes: a daemon that inherited a pipe would keep it open.
        self._answer, self._errors = told.with_suffix(".out"), told.with_suffix(".err")
        with self._answer.open("wb") as answer, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                words,
                env=environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=errors,
                start_new_session=True,  # the demo itself handles Ctrl-C
            )

    def poll(self) -> Outcome | None:
        """Return the outcome, or None while the command runs."""
        code = self._process.poll()
        if code is None:
            return None
        return Outcome(code, self._answer.read_text(errors="replace"), self._errors.read_text(errors="replace"))

    def give_up(self) -> None:
        """Kill the command, since its answer is no longer needed."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float, meanwhile: Callable[[], None] = lambda: None) -> Outcome:
        """Return the outcome; the command is killed after `timeout_s`. `meanwhile` is called at every poll, and may
        raise.
        """
        deadline = time.monotonic() + timeout_s
        while (outcome := self.poll()) is None:
            if time.monotonic() > deadline:
                self.give_up()
                return Outcome(1, "", f"took longer than {timeout_s:.0f} s")
            meanwhile()
            time.sleep(POLL_INTERVAL_S)
        return outcome


class DemoCluster:
    """Real daemons for two servers under a temporary directory."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="elasticctl-demo-"))
        self._cluster = self.directory / "cluster"
        self._bin = Path(sys.executable).parent
        self._calls: list[Command] = []
        self._client: Client | None = None
        self._up: Command | None = None

    def elasticctl(self, *arguments: str) -> Command:
        """Start ``elasticctl`` with the environment of a user who has activated the virtual environment."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ELASTIC")}
        environment["PATH"] = f"{self._bin}{os.pathsep}{environment.get('PATH', os.defpath)}"
        environment["VIRTUAL_ENV"] = str(self._bin.parent)
        words = [str(self._bin / "elasticctl"), "--dir", str(self._cluster), *arguments]
        self._calls.append(Command(words, environment, self.directory / f"call-{len(self._calls)}"))
        return self._calls[-1]

    def up(self, servers: int, gpus: int, policy: str, meanwhile: Callable[[], None]) -> None:
        """Start the daemons and wait until they are ready. Raises DemoFailed."""
        words = ["up", "--servers", str(servers), "--gpus", str(gpus), "--policy", policy]
        self._up = self.elasticctl(*words)
        outcome = self._up.wait(COMMAND_TIMEOUT_S, meanwhile)
        if outcome.exit_code:
            raise DemoFailed(f"the cluster did not start: {outcome.text}")
        address = read_address(self._cluster)
        assert address is not None, "a cluster that is up has an address"
        self._client = Client(address)

    def ask(self, request: Request) -> Answer:
        """Return the controller's answer. Raises ElasticError."""
        assert self._client is not None, "asked before the cluster was up"
        return self._client.ask(request, ANSWER_TIMEOUT_S)

    def down(self) -> list[str]:
        """Stop everything. Returns the command lines of processes that outlived ``elasticctl down`` and had to be
        killed.
        """
        if self._client is not None:
            self._client.close()
        if self._up is not None:
            self._up.wait(COMMAND_TIMEOUT_S)  # an `up` that was cut short could still be starting daemons
            for call in self._calls:
                call.give_up()
            self.elasticctl("down", "--purge", "--yes").wait(COMMAND_TIMEOUT_S)
        left = _wait_for_end(self.processes, EXIT_GRACE_S)
        told = [f"{process.pid} {' '.join(_command_line(process))}" for process in left]
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        shutil.rmtree(self.directory, ignore_errors=True)
        return told

    def processes(self) -> list[psutil.Process]:
        """Return all processes that belong to this cluster."""
        mark, own = str(self.directory), os.getpid()
        return [process for process in psutil.process_iter() if process.pid != own and _mentions(process, mark)]


def _wait_for_end(processes: Callable[[], list[psutil.Process]], timeout_s: float) -> list[psutil.Process]:
    deadline = time.monotonic() + timeout_s
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    return left


def _mentions(process: psutil.Process, mark: str) -> bool:
    try:
        environment = process.environ().values()
    except (psutil.Error, OSError):
        environment = {}.values()
    return any(mark in text for text in (*_command_line(process), *environment))


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.Error, OSError):
        return []
