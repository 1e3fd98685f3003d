"""Following a job to its end: `run` and `attach` show its output, and exit with its code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Annotated

import typer

from ..protocol.errors import ClusterUnreachable
from ..protocol.messages import JobView
from ..protocol.model import JobId, JobPhase
from . import completion, render
from .context import JSON, Context, of, say
from .waiting import SECONDS, Waiting

SHOWN_LINES = 10  # lines of earlier output that `attach` shows


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(attach)


def attach(
    context: typer.Context,
    job: Annotated[str, typer.Argument(help="Which job.", show_default=False, autocompletion=completion.any_jobs)],
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="Lines to show of the output so far.")] = SHOWN_LINES,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Follow a job that is submitted: show its output from now on, and exit with its code. Ctrl-C leaves the job alone."""
    shared = of(context)
    raise typer.Exit(follow_to_end(shared, shared.job(job).job, tail, as_json))


def follow_to_end(shared: Context, job: JobId, tail: int | None = None, as_json: bool = False) -> int:
    """Show the output of a job, and on stderr what it waits for, until it is over. Return its exit code.

    `tail`: the lines to show of the output so far; None: all.
    """
    from .logs import Wanted, follow_job

    try:
        with _interruptible(job):
            follow_job(shared, job, Wanted(tail=tail), as_json, _Waits(job).tell)
            return end(shared, job)
    except ClusterUnreachable:
        say(f"elasticctl: {job} may go on: {_back(job)}")
        raise


def end(shared: Context, job: str) -> int:
    """Wait for the end of a job, report the end on stderr, and return the job's exit code."""
    view = until_final(shared, job)
    say("\n".join([f"elasticctl: {render.verdict(view)}", *render.failure_lines(view)]))
    return exit_code(view)


def until_final(shared: Context, job: str, within_s: float | None = None) -> JobView:
    """Poll until `job` is over. Raises RequestRefused if that takes longer than `within_s`."""
    shared.outlast_a_restart(within_s)
    waiting = Waiting(f"the end of {job}", within_s)
    while not (view := shared.job(job)).phase.final:
        waiting.pause(view.reason)
    return view


def exit_code(view: JobView) -> int:
    """Return the job's own exit code; 1 if the job was killed by a signal or cancelled."""
    if view.phase is JobPhase.FINISHED:
        return 0
    return view.exit_code if view.exit_code is not None and 0 < view.exit_code < 256 else 1


def _back(job: str) -> str:
    return f"`elasticctl attach {job}` comes back to it, `elasticctl cancel {job}` ends it"


@contextlib.contextmanager
def _interruptible(job: str) -> Iterator[None]:
    """Handle Ctrl-C in this context: the first one prints that the job goes on, the second one raises KeyboardInterrupt."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        text = f"\nelasticctl: {job} goes on: {_back(job)}; Ctrl-C again leaves it\n"
        os.write(sys.stderr.fileno(), text.encode())  # print() is not reentrant, and may have been interrupted

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Waits:
    """Printer, on stderr, of the reasons why a followed job has no GPUs, each time that the reason changes."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._shown = ""

    def tell(self, view: JobView) -> None:
        waits = view.phase is JobPhase.PENDING and not view.workers
        words = SECONDS.sub("", view.reason) if waits else ""
        if waits and words and words != self._shown:
            say(f"elasticctl: {self._job} waits: {render.printable(view.reason)}")
        elif self._shown and not waits and not view.phase.final:
            say(f"elasticctl: {self._job} has GPUs, and starts")
        self._shown = words
