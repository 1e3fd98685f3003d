"""`elasticctl logs`: the output of a job's workers, in the order of time.

Each worker's log is read from its server piece by piece; the pieces are merged by the time stamps of their lines. Lines
with the same time stamp keep the order in which their worker wrote them.
"""

from __future__ import annotations

import datetime
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import typer

from ..protocol.errors import RequestRefused, UserError
from ..protocol.messages import GetLog, JobView, Log, WorkerStage
from ..protocol.model import WorkerId
from . import completion
from .context import JSON, Context, of, print_json, say

FOLLOW_S = 0.2
PIECE_BYTES = 1 << 18
TAIL_BYTES = 1 << 16  # bytes at the end of a log that are read first for its last lines
NOTHING_YET = "has had no worker yet, so there is no log"
STREAMS = {b"o": "stdout", b"e": "stderr"}


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(logs)


@dataclass(frozen=True)
class Line:
    """A line of a worker's output, with its time (Unix time)."""

    time_s: float
    worker: WorkerId
    stream: str
    text: str

    def document(self) -> dict[str, object]:
        return {"time_s": self.time_s, "worker": self.worker, "stream": self.stream, "text": self.text}


@dataclass
class _Reader:
    """Position and state of reading one worker's log."""

    worker: WorkerId
    offset: int = 0
    ended: bool = False
    last_s: float = 0.0
    trouble: str = ""  # why the log cannot be read now


@dataclass(frozen=True)
class Wanted:
    """Filter of lines: by worker (its number), by attempt of the job, from a time on, the last so many. None: all."""

    worker: int | None = None
    attempt: int | None = None
    after_s: float = 0.0
    tail: int | None = None

    def last(self, lines: list[Line]) -> list[Line]:
        """Return the last wanted ones of `lines`, in order."""
        return lines if self.tail is None else lines[len(lines) - min(self.tail, len(lines)) :]


EVERYTHING = Wanted()


def logs(
    context: typer.Context,
    job: Annotated[str, typer.Argument(help="Which job.", show_default=False, autocompletion=completion.any_jobs)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    worker: Annotated[int | None, typer.Option(help="Only the worker with this number.", show_default=False)] = None,
    attempt: Annotated[
        int | None,
        typer.Option(
            min=1, help="Only of this attempt: 1 is the first, each restart begins another.", show_default=False
        ),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Only the last so many lines.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only the last 10m, 2h, ..., or from a time on: 14:30, 2026-03-01T08:00.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show the output of a job's workers."""
    shared = of(context)
    after_s = 0.0 if since is None else since_s(since, time.time())
    wanted = Wanted(worker, attempt, after_s, tail)
    if follow:
        follow_job(shared, job, wanted, as_json)
        return
    view = shared.job(job)
    if not (readers := _readers(view, wanted)):
        say(f"{view.job} {NOTHING_YET}")
    lines = [line for reader in readers for line in _read_wanted(shared, view, reader, tail)]
    chosen = wanted.last(_in_order(lines, after_s))
    if as_json:
        print_json({"job": view.job, "lines": [line.document() for line in chosen]})
    else:
        _print(chosen, several=len({line.worker for line in lines}) > 1)


def follow_job(
    shared: Context,
    job: str,
    wanted: Wanted = EVERYTHING,
    as_json: bool = False,
    look: Callable[[JobView], None] | None = None,
) -> None:
    """Print new lines until the job is over and its logs have ended.

    `look`: called with each view of the job. With it, what the job wrote to stderr goes to stderr.
    """
    shared.outlast_a_restart()
    follower = Follower(wanted)
    while True:
        view = shared.job(job)
        if look is not None:
            look(view)
        lines, came = follower.more(shared, view)
        if as_json:
            for line in lines:
                print(json.dumps(line.document()))  # a stream: one document a line
            sys.stdout.flush()
        else:
            _print(lines, several=follower.several, apart=look is not None)
        if view.phase.final and not came:
            return
        if not came:
            time.sleep(FOLLOW_S)


class Follower:
    """Reading the output of a job's workers as it grows."""

    def __init__(self, wanted: Wanted = EVERYTHING) -> None:
        self._wanted = wanted
        self._readers: dict[WorkerId, _Reader] = {}
        self._begun = False

    @property
    def several(self) -> bool:
        """Return whether more than one worker has written."""
        return len(self._readers) > 1

    @property
    def troubles(self) -> list[str]:
        """Return why some logs cannot be read now."""
        return [f"log of {each.worker}: {each.trouble}" for each in self._readers.values() if each.trouble]

    def more(self, shared: Context, view: JobView) -> tuple[list[Line], bool]:
        """Return the wanted ones of the lines that have come since the last call, and whether any lines have come.
        `view`: the job as it is now.
        """
        for reader in _readers(view, self._wanted):
            self._readers.setdefault(reader.worker, reader)
        tail = None if self._begun else self._wanted.tail
        read = _read if tail is None else functools.partial(_read_wanted, tail=tail)
        unended = [reader for reader in self._readers.values() if not reader.ended]
        lines = [line for reader in unended for line in read(shared, view, reader)]
        chosen = _in_order(lines, self._wanted.after_s)
        if not self._begun:
            chosen, self._begun = self._wanted.last(chosen), True
        return chosen, bool(lines)


def since_s(text: str, now_s: float, option: str = "--since") -> float:
    """Return the Unix time of `text`: "10m" before now, a time of day (the last such), or a date with a time.

    Raises UserError, which names the option.
    """
    from ..protocol.durations import duration_s

    try:
        return datetime.datetime.fromisoformat(text).timestamp() if "-" in text else _time_of_day(text, now_s)
    except ValueError:
        pass
    try:
        return now_s - duration_s(text, option)
    except UserError:
        raise UserError(
            f"{option}: {text!r} is neither a duration such as 10m, nor a time such as 14:30 or 2026-03-01T08:00"
        ) from None


def _time_of_day(text: str, now_s: float) -> float:
    if ":" not in text:
        raise ValueError(text)
    now = datetime.datetime.fromtimestamp(now_s)
    moment = datetime.datetime.combine(now.date(), datetime.time.fromisoformat(text))
    return (moment if moment <= now else moment - datetime.timedelta(days=1)).timestamp()


def _readers(view: JobView, wanted: Wanted) -> list[_Reader]:
    """Return a reader for each wanted worker that has started, by number. Raises UserError if no worker has the number
    or attempt.
    """
    started = {w.worker: w for w in (*view.past_workers, *view.workers) if w.phase is not WorkerStage.ORDERED}
    chosen = [name for name in started if wanted.worker is None or name == f"{view.job}.{wanted.worker}"]
    if wanted.worker is not None and not chosen:
        raise UserError(f"--worker {wanted.worker}: {view.job} has had no such worker")
    if wanted.attempt is not None:
        chosen = [name for name in chosen if started[name].attempt == wanted.attempt]
        if not chosen and started:
            known = ", ".join(map(str, sorted({w.attempt for w in started.values() if w.attempt}))) or "none"
            raise UserError(
                f"--attempt {wanted.attempt}: {view.job} has no worker of it; attempts with workers: {known}"
            )
    return [_Reader(name) for name in sorted(chosen, key=lambda name: int(name.rpartition(".")[2]))]


def _read_wanted(shared: Context, view: JobView, reader: _Reader, tail: int | None) -> list[Line]:
    """Return all lines of a log, or a part of its end that contains `tail` lines."""
    size = TAIL_BYTES
    while tail is not None:
        reader.offset, reader.ended = -size, False
        lines = _read_all(shared, view, reader)
        if (
            len(lines) >= tail or size >= reader.offset
        ):  # `reader.offset` is the log's length now, or below 0 where the log was not read
            return lines
        size *= 8
    return _read_all(shared, view, reader)


def _read_all(shared: Context, view: JobView, reader: _Reader) -> list[Line]:
    lines: list[Line] = []
    while not reader.ended and (piece := _read(shared, view, reader)):
        lines += piece
    return lines


def _read(shared: Context, view: JobView, reader: _Reader) -> list[Line]:
    """Return the next lines of one worker's log."""
    try:
        request = GetLog(job=view.job, worker=reader.worker, offset=reader.offset, limit=PIECE_BYTES)
        piece = shared.ask(request, Log)
    except RequestRefused as error:
        if not reader.trouble:  # reading is tried again later, since the server may come back
            say(f"elasticctl: log of {reader.worker}: {error}")
        reader.trouble = str(error)
        return []
    reader.offset, reader.ended, reader.trouble = piece.next_offset, piece.end, ""
    return [_parsed(line, reader) for line in piece.data.split(b"\n")[:-1]]


def _parsed(line: bytes, reader: _Reader) -> Line:
    """Return the line in ``<unix time> <o|e> <text>``. A line torn by a full disk is shown whole, at the time of the
    line before.
    """
    stamp, _, rest = line.partition(b" ")
    stream, _, text = rest.partition(b" ")
    try:
        reader.last_s, shown = float(stamp), text
    except ValueError:
        stream, shown = b"o", line
    return Line(reader.last_s, reader.worker, STREAMS.get(stream, "stdout"), shown.decode(errors="replace"))


def _in_order(lines: Iterable[Line], after_s: float) -> list[Line]:
    return sorted((line for line in lines if line.time_s >= after_s), key=lambda line: line.time_s)  # stable


def _print(lines: Iterable[Line], several: bool, apart: bool = False) -> None:
    """Print lines. `several`: name the worker of each. `apart`: lines of stderr go to stderr."""
    for line in lines:
        to = sys.stderr if apart and line.stream == STREAMS[b"e"] else sys.stdout
        print(f"[{line.worker.rpartition('.')[2]}] {line.text}" if several else line.text, file=to)
    sys.stdout.flush()
