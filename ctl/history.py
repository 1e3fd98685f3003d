"""`elasticctl history`: finished jobs, similar to Slurm's `sacct`, for people, for spreadsheets and for programs.

The controller returns pages of finished jobs, the last day first. This module filters them (by state or time) page by
page until it has enough: an archive may hold 100,000 jobs.
"""

from __future__ import annotations

import csv
import datetime
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from ..protocol.errors import UserError
from ..protocol.messages import GetEnded, JobView
from ..protocol.model import NO_USE, JobPhase, Use
from ..protocol.principals import LOCAL
from . import completion, render
from .client import Client
from .context import JSON, of, print_json, say, show
from .formatting import for_spreadsheet
from .logs import since_s
from .tables import Cell, Column, Row, Table

DAY_S = 86_400.0
STATES = tuple(phase.value for phase in JobPhase if phase.final)


@dataclass(frozen=True)
class Field:
    """A column. `text` for people, `value` for programs: times as ISO 8601 in UTC, numbers without a unit, a missing
    value as "".
    """

    title: str
    value: Callable[[JobView], object]
    text: Callable[[JobView], str] | None = None
    right: bool = False
    words: str = ""  # template in a line of details, where the terminal is narrow
    wanted: int = 0


def moment(time_s: float | None) -> str:
    """Return the local day and time for people."""
    return "-" if time_s is None else time.strftime("%m-%d %H:%M", time.localtime(time_s))


def stamp(time_s: float | None) -> str:
    if time_s is None:
        return ""
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).isoformat(timespec="seconds")


def elapsed_s(view: JobView) -> float | None:
    """Return the time (s) from the job's start to its end; None: the job never started."""
    return None if view.started_s is None or view.finished_s is None else max(0.0, view.finished_s - view.started_s)


def waited_s(view: JobView) -> float:
    """Return the time (s) from the job's submission to its start, or to its end if it never started."""
    until_s = view.started_s if view.started_s is not None else view.finished_s
    return max(0.0, (until_s or view.submitted_s) - view.submitted_s)


def peak_gpus(view: JobView) -> int:
    """Return the most GPUs on which the job has trained at once. Jobs of earlier versions hold only their last changes
    of share.
    """
    return max([view.peak_gpus, view.share_gpus, *(change.share for change in view.shares)])


def ended_by(view: JobView) -> str:
    """Return the party that ended the job: a user's name; `itself`, if its command ended; `cluster`, if the cluster
    gave it up; "": unknown.
    """
    if view.phase is JobPhase.CANCELLED:
        return (view.spec.user if view.ended_by == LOCAL else view.ended_by) or ""
    return "itself" if view.phase is JobPhase.FINISHED or view.exit_code is not None else "cluster"


def exit_code(view: JobView) -> int | None:
    return 0 if view.phase is JobPhase.FINISHED and view.exit_code is None else view.exit_code


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else render.span(seconds)


def _rounded(seconds: float | None) -> float | str:
    return "" if seconds is None else round(seconds, 3)


def _told(value: object) -> str:
    return "-" if value in (None, "") else render.printable(str(value))


def _bare(value: object) -> object:
    """Return the value for another program: a reason may have control characters, or begin as a formula does."""
    return for_spreadsheet(value) if isinstance(value, str) else value


FIELDS = {
    "job": Field("JOB", lambda view: view.job),
    "name": Field("NAME", lambda view: view.spec.name, words="named {}"),
    "user": Field("USER", lambda view: _person(view), words="of {}", wanted=7),
    "state": Field("STATE", lambda view: view.phase.value),
    "submitted": Field(
        "SUBMITTED",
        lambda view: stamp(view.submitted_s),
        lambda view: moment(view.submitted_s),
        words="submitted {}",
        wanted=3,
    ),
    "started": Field(
        "STARTED", lambda view: stamp(view.started_s), lambda view: moment(view.started_s), words="started {}", wanted=2
    ),
    "ended": Field(
        "ENDED", lambda view: stamp(view.finished_s), lambda view: moment(view.finished_s), words="ended {}", wanted=8
    ),
    "waited_s": Field("WAITED", lambda view: _rounded(waited_s(view)), lambda view: _span(waited_s(view)), right=True),
    "elapsed_s": Field(
        "ELAPSED", lambda view: _rounded(elapsed_s(view)), lambda view: _span(elapsed_s(view)), right=True
    ),
    "gpu_hours": Field(
        "GPU-HOURS",
        lambda view: round(view.gpu_seconds.held_gpu_s / 3600, 4),
        lambda view: f"{view.gpu_seconds.held_gpu_s / 3600:.2f}",
        right=True,
        words="{} GPU-hours",
        wanted=6,
    ),
    "use": Field(
        "USE",
        lambda view: round(100 * busy, 1) if (busy := _use(view).busy) is not None else "",
        lambda view: render.percent(busy) if (busy := _use(view).busy) is not None else "-",
        right=True,
        words="{} busy",
        wanted=6,
    ),
    "cores": Field(
        "CORES", lambda view: round(cores, 2) if (cores := _use(view).cores) is not None else "", right=True
    ),
    "memory": Field("MEMORY", lambda view: _gib(_use(view).memory_bytes), right=True, words="{} GiB"),
    "memory_gpu": Field("GPU-MEMORY", lambda view: _gib(_use(view).gpu_memory_bytes), right=True, words="{} GiB"),
    "peak_gpus": Field("PEAK", peak_gpus, right=True, words="peak {}", wanted=4),
    "exit_code": Field("EXIT", exit_code, right=True),
    "ended_by": Field("BY", ended_by, words="ended by {}", wanted=5),
    "restarts": Field("RESTARTS", lambda view: view.restarts, right=True, words="restarts {}"),
    "steps": Field("STEPS", lambda view: render.steps_done(view), render.step, right=True, words="steps {}"),
    "reason": Field("REASON", lambda view: view.reason),
    "command": Field("COMMAND", lambda view: shlex.join(view.spec.command), words="{}"),
    "workdir": Field("WORKDIR", lambda view: view.spec.workdir, words="in {}"),
}
USUAL = (
    "job",
    "user",
    "state",
    "submitted",
    "started",
    "ended",
    "elapsed_s",
    "gpu_hours",
    "use",
    "peak_gpus",
    "exit_code",
    "ended_by",
)


def _use(view: JobView) -> Use:
    return view.use if view.use is not None else NO_USE


def _gib(bytes_: int) -> object:
    return round(bytes_ / (1 << 30), 3) if bytes_ else ""


def _person(view: JobView) -> str:
    name = render.user(view)
    return "" if name == "-" else name


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(history)


def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many jobs.")] = 50,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="JOB",
            help="Only jobs that ended before this one.",
            show_default=False,
            autocompletion=completion.ended_jobs,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only those that ended in the last 12h, 7d, ..., or from a time on.", show_default=False),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these: finished, failed, cancelled; several with commas.",
            show_default=False,
            autocompletion=completion.words(*STATES),
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--format", help=f"Which columns, with commas: {', '.join(FIELDS)}.", show_default=False),
    ] = None,
    mine: Annotated[
        bool, typer.Option("--mine", help="Only jobs that you have submitted.", show_default=False)
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values; times in UTC.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show finished jobs, the latest first: by the day on which they ended, then by submission."""
    if as_json and (as_csv or columns is not None):
        raise UserError("--json shows all that is known of a job: leave out --csv and --format, or --json")
    names = chosen(columns)
    states = _states(state or ())
    after_s = None if since is None else since_s(since, time.time())
    client = of(context).client
    asked = Picked(states, after_s)
    found, more = picked(client, GetEnded(before_job=before or "", mine=mine), asked, limit)
    if as_json:
        document = {"jobs": render.plain(found), "time_s": time.time(), "more_before": found[-1].job if more else None}
        print_json(document)
        return
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_bare(FIELDS[name].value(view)) for name in names] for view in found)
    elif found:
        show(table(found, names, reasons=columns is None))
    else:
        print(_nothing(before, asked))
    if more:
        say(f"elasticctl: more: elasticctl history {_repeated(sys.argv)}--before {found[-1].job}")


@dataclass(frozen=True)
class Picked:
    """Filter of finished jobs."""

    states: frozenset[str] = frozenset(STATES)
    after_s: float | None = None  # Unix time: only jobs that ended then or later

    def wants(self, view: JobView) -> bool:
        late = self.after_s is None or (view.finished_s or 0.0) >= self.after_s
        return late and view.phase.value in self.states

    def is_past(self, view: JobView) -> bool:
        """Return whether `view`, and so every later job of the list, ended on a day (UTC) before the filter's first."""
        return self.after_s is not None and (view.finished_s or 0.0) // DAY_S < self.after_s // DAY_S


def picked(client: Client, request: GetEnded, asked: Picked, limit: int) -> tuple[list[JobView], bool]:
    """Return the first `limit` jobs that pass the filter, and whether there may be more."""
    found: list[JobView] = []
    for view in client.ended(request, limit if asked == Picked() else None):
        if asked.is_past(view):
            return found, False
        if not asked.wants(view):
            continue
        if len(found) == limit:
            return found, True
        found.append(view)
    return found, False


def chosen(text: str | None) -> tuple[str, ...]:
    """Return the names of the columns in `text`: each may be shortened, or given by its title. Raises UserError."""
    if text is None:
        return USUAL
    names = []
    for word in text.replace("-", "_").lower().split(","):
        wanted = {"note": "reason"}.get(word.strip(), word.strip())  # a title of tables in other terms
        near = [name for name in FIELDS if wanted in (name, FIELDS[name].title.lower())] or [
            name for name in FIELDS if wanted and name.startswith(wanted)
        ]
        if len(near) != 1:
            what = f"may be {' or '.join(near)}" if near else f"is no column; columns are {', '.join(FIELDS)}"
            raise UserError(f"--format: {wanted!r} {what}")
        names += near
    return tuple(dict.fromkeys(names))


def _states(given: Sequence[str]) -> frozenset[str]:
    words = [word.strip() for each in given for word in each.lower().split(",")]
    for word in words:
        if word in (phase.value for phase in JobPhase if not phase.final):
            raise UserError(
                f"--state: history is of jobs that are over; `elasticctl status` shows those that are {word}"
            )
        if word not in STATES:
            raise UserError(f"--state: {word!r} is not one of {', '.join(STATES)}")
    return frozenset(words or STATES)


def table(views: Sequence[JobView], names: Sequence[str], reasons: bool = True) -> Table:
    """Return a table with one job a row; with `reasons`, a failed job's reason below or beside it."""
    fields = [FIELDS[name] for name in names]
    columns = tuple(
        Column(each.title, each.right, each.words if at else "", each.wanted) for at, each in enumerate(fields)
    )
    rows = [Row(tuple(_cells(view, names)), _notes(view) if reasons else ()) for view in views]
    return Table(columns, rows)


def _cells(view: JobView, names: Sequence[str]) -> Iterator[Cell]:
    for name in names:
        field = FIELDS[name]
        style = render.PHASE_STYLES[view.phase] if name == "state" else ""
        yield Cell(_told(field.value(view) if field.text is None else field.text(view)), style)


def _notes(view: JobView) -> tuple[str, ...]:
    return (render.printable(view.reason),) if view.phase is JobPhase.FAILED and view.reason else ()


def _nothing(before: str | None, asked: Picked) -> str:
    which = "" if asked == Picked() else " and are asked for"
    return f"no jobs that are over{which}" if before is None else f"no jobs that ended before {before}{which}"


def _repeated(words: Sequence[str]) -> str:
    """Return the options of this call without `--before`, to follow `elasticctl history`."""
    rest = list(words[words.index("history") + 1 :]) if "history" in words else []
    kept: list[str] = []
    while rest:
        word = rest.pop(0)
        if word == "--before":
            rest[:1] = []
        elif not word.startswith("--before="):
            kept.append(word)
    return f"{shlex.join(kept)} " if kept else ""
