"""`elasticctl logs`: what the workers have written, in the order of time."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from ..protocol.errors import RequestRefused, UserError
from ..protocol.messages import GetLog, JobView, Log
from ..protocol.model import WorkerId
from .context import Context, of, say

FOLLOW_S = 0.2
PIECE_BYTES = 1 << 18


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(logs)


@dataclass
class _Reader:
    """How far the log of one worker has been read."""

    worker: WorkerId
    offset: int = 0
    ended: bool = False


def logs(
    context: typer.Context,
    job: Annotated[str, typer.Argument(help="Which job.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    worker: Annotated[int | None, typer.Option(help="Only the worker with this number.", show_default=False)] = None,
    since: Annotated[str | None, typer.Option(help="Only the last 10m, 2h, ...", show_default=False)] = None,
) -> None:
    """Show what a job's workers have written."""
    shared = of(context)
    after = 0.0
    if since is not None:
        from .jobfile import duration_s

        after = time.time() - duration_s(since, "--since")
    if follow:
        follow_job(shared, job, worker, after)
        return
    view = shared.job(job)
    readers = {reader.worker: reader for reader in _readers(view, worker)}
    lines: list[tuple[float, str, WorkerId]] = []
    for reader in readers.values():
        while piece := _read(shared, view.job, reader):
            lines += piece
    _print(sorted(lines), after, several=len({name for *_, name in lines}) > 1)


def follow_job(shared: Context, job: str, worker: int | None = None, after: float = 0.0) -> None:
    """Print what comes until the job is over and its logs have ended."""
    readers: dict[WorkerId, _Reader] = {}
    while True:
        view = shared.job(job)
        for reader in _readers(view, worker):
            readers.setdefault(reader.worker, reader)
        lines: list[tuple[float, str, WorkerId]] = []
        for reader in readers.values():
            if not reader.ended:
                lines += _read(shared, view.job, reader)
        _print(sorted(lines), after, several=len(readers) > 1)
        if view.phase.final and not lines:
            return
        if not lines:
            time.sleep(FOLLOW_S)


def _readers(view: JobView, worker: int | None) -> list[_Reader]:
    names = {w.worker: None for w in (*view.past_workers, *view.workers) if w.phase != "ordered"}
    chosen = [name for name in names if worker is None or name == f"{view.job}.{worker}"]
    if worker is not None and not chosen:
        raise UserError(f"--worker {worker}: {view.job} has had no such worker")
    return [_Reader(name) for name in sorted(chosen, key=lambda name: int(name.rpartition(".")[2]))]


def _read(shared: Context, job: str, reader: _Reader) -> list[tuple[float, str, WorkerId]]:
    """The next lines of one worker's log: time, text, worker."""
    try:
        request = GetLog(job=job, worker=reader.worker, offset=reader.offset, limit=PIECE_BYTES)
        piece = shared.ask(request, Log)
    except RequestRefused as error:
        say(f"elasticctl: log of {reader.worker}: {error}")
        reader.ended = True
        return []
    reader.offset, reader.ended = piece.next_offset, piece.end
    lines = []
    for line in piece.data.splitlines():
        stamp, _, rest = line.partition(b" ")
        lines.append((float(stamp), rest[2:].decode(errors="replace"), reader.worker))
    return lines


def _print(lines: list[tuple[float, str, WorkerId]], after: float, several: bool) -> None:
    for at, text, worker in lines:
        if at >= after:
            print(f"[{worker.rpartition('.')[2]}] {text}" if several else text)
    sys.stdout.flush()
