"""Runs the parts of a check: the user's own command, once for each worker, with its instructions in the environment.

In every case (the script fails or hangs, Ctrl-C), no process and no file of the check is left behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...protocol.rehearsal import REMEDY, VARIABLE, Errand
from .notes import Notes
from .parts import FIRST, Part
from .warm import Forked, Warm, can_fork

POLL_S = 0.02
OTHERS_END_WITHIN_S = 5.0  # time for the other workers to end after one has failed
STACKS_WITHIN_S = 1.0
TAIL_LINES = 40
TAIL_BYTES = 64 << 10
EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b")
BY_OTHERS = "elasticd.protocol.errors.PeerError: "
REFUSED = "elasticd.protocol.errors.UserError: "  # as Python prints the class at the end of a traceback
BUDGET_S = 15.0  # time for the steps of the first part, if their number is not given


@dataclass(frozen=True)
class Script:
    """The script to check: its command, surroundings and limits."""

    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]
    virtual_workers: int | None = None
    steps: int | None = None
    limit_s: float = 120.0


@dataclass
class Outcome:
    """Outcome of one part of a check."""

    part: Part
    seconds: float = 0.0
    notes: dict[int, Notes] = field(default_factory=dict)  # notes of each worker
    failed: int | None = None  # the worker that ended first with an error
    exit_code: int | None = None
    output: tuple[str, ...] = ()  # the last lines of that worker
    late: bool = False  # the worker had not ended at the time limit

    @property
    def error(self) -> str:
        """Return the error in one sentence; empty: no worker failed."""
        if self.failed is None:
            return ""
        code = self.exit_code or 0
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        last = error_line(self.output) or how
        return ": ".join(filter(None, (last.partition(REFUSED)[2] or last, remedy_line(self.output))))

    @property
    def refused(self) -> bool:
        """Return whether the script cannot be elastic as it is: the library raised an error, or knows a remedy."""
        told = REFUSED in error_line(self.output) or bool(remedy_line(self.output))
        return self.failed is not None and not self.late and told


class Driver:
    """Context manager that runs the parts. On exit the scratch directory and all processes are gone."""

    def __init__(self, script: Script, turned: Callable[[], None] = lambda: None) -> None:
        """Prepare the driver. `turned`: called again and again during a wait."""
        self._script = script
        self._turned = turned
        self._running: dict[int, subprocess.Popen[bytes] | Forked] = {}
        self._warm: Warm | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Driver:
        scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="elasticctl-check-"))
        self._scratch = Path(scratch)
        if can_fork(self._script.command):
            self._warm = Warm(self._script.command[0], self._script.directory, self._environment())
            self._stack.callback(self._warm.close)
        self._stack.callback(self._end_all)
        self._stack.enter_context(_terminated_as_interrupted())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, part: Part, steps: int | None) -> Outcome:
        """Run a part, to `steps` steps; None: until its time budget is spent."""
        begun = time.monotonic()
        outcome = Outcome(part)
        directory = Path(tempfile.mkdtemp(prefix=part.kind.name.lower(), dir=self._scratch))
        for number, workers in enumerate(part.stages):
            suspended_at = part.suspended_at[number] if part.suspended_at else None
            for worker in workers:
                self._start(part, directory, worker, steps, suspended_at, number * len(part.entries))
            self._wait(outcome, directory)
            for worker in workers:
                outcome.notes[worker] = Notes.read(directory / f"{worker}.notes")
            if outcome.failed is not None:
                break
        outcome.seconds = time.monotonic() - begun
        return outcome

    def _start(
        self, part: Part, directory: Path, worker: int, steps: int | None, suspended_at: int | None, before: int
    ) -> None:
        script = self._script
        errand = Errand(
            worker=worker if part.suspended_at == () else 0,
            noted_by=worker,
            directory=str(directory),
            checkpoints=str(directory / "checkpoints"),
            entries=part.entries,
            losses=part.losses,
            before=before,
            virtual_workers=script.virtual_workers,
            steps=steps,
            budget_s=BUDGET_S if steps is None else None,
            suspended_at=suspended_at,
            backwards=part.backwards,
            meet_within_s=script.limit_s,
        )
        path = directory / f"{worker}.errand"
        path.write_bytes(msgspec.json.encode(errand))
        log = directory / f"{worker}.log"
        log.touch()
        environment = {**self._environment(part.hash_seed), VARIABLE: str(path)}
        if self._warm is not None and part.hash_seed == FIRST.hash_seed:
            forked = self._warm.start(script.command, script.directory, environment, log)
            if forked is not None:
                self._running[worker] = forked
                return
        with open(log, "ab") as output:
            self._running[worker] = subprocess.Popen(
                script.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=script.directory,
                env=environment,
                start_new_session=True,
            )

    def _environment(self, hash_seed: int = FIRST.hash_seed) -> dict[str, str]:
        return {
            **self._script.environment,
            "PYTHONHASHSEED": str(hash_seed),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUNBUFFERED": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }

    def _wait(self, outcome: Outcome, directory: Path) -> None:
        """Wait until all workers of a stage have ended, or one has failed and OTHERS_END_WITHIN_S have passed."""
        until = time.monotonic() + self._script.limit_s
        while self._running:
            for worker, process in list(self._running.items()):
                code = process.poll()
                if code is None:
                    continue
                self._end(worker)  # the worker's own child processes
                killed = worker in outcome.part.killed and code == -signal.SIGKILL
                over = Notes.read(directory / f"{worker}.notes").over is not None
                if code and not killed and not over:
                    self._failed(outcome, worker, code, tail(directory / f"{worker}.log"))
                    (directory / "failed").touch()  # tells the other workers not to wait for the failed one
                    until = min(until, time.monotonic() + OTHERS_END_WITHIN_S)
            if self._running and time.monotonic() > until:
                self._give_up(outcome, directory)
            self._turned()
            time.sleep(POLL_S)

    def _failed(self, outcome: Outcome, worker: int, code: int, output: tuple[str, ...]) -> None:
        """Record a failed worker: the first one, except one that failed only because another was lost."""
        follows = BY_OTHERS in error_line(outcome.output) and BY_OTHERS not in error_line(output)
        if outcome.failed is None or follows:
            outcome.failed, outcome.exit_code, outcome.output = worker, code, output

    def _give_up(self, outcome: Outcome, directory: Path) -> None:
        first = next(iter(self._running))
        if outcome.failed is None:
            outcome.failed, outcome.late = first, True
            with contextlib.suppress(ProcessLookupError):
                self._running[first].send_signal(signal.SIGABRT)  # makes it write its stack to its output
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running[first].wait(STACKS_WITHIN_S)
            outcome.output = tail(directory / f"{first}.log", 40)
        self._end_all()

    def _end_all(self) -> None:
        for worker in list(self._running):
            self._end(worker)

    def _end(self, worker: int) -> None:
        process = self._running.pop(worker)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def error_line(lines: Sequence[str]) -> str:
    """Return the line that names the error: the last exception, else the last line."""
    errors = [line for line in lines if EXCEPTION.match(line)]
    return errors[-1] if errors else lines[-1] if lines else ""


def remedy_line(lines: Sequence[str]) -> str:
    """Return the remedy that the library has added to the error; "" if there is none."""
    return lines[-1].removeprefix(REMEDY) if lines and lines[-1].startswith(REMEDY) else ""


def tail(path: Path, lines: int = TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines of an output."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    found = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("Extension modules:")]
    return tuple(found[-lines:])


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end this process as Ctrl-C does: after the cleanup."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
