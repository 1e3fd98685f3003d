"""`elasticctl report`: GPU-seconds by user, day or job (docs/accounting.md)."""

from __future__ import annotations

import csv
import datetime
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ..protocol.errors import UserError
from ..protocol.messages import GetUsage, UsageBy, UsageReport, UsageRow
from . import completion, jobreport, pictures, render
from .context import JSON, of, print_json, print_lines, say, show
from .formatting import for_spreadsheet

DAY_S = 86_400.0
DEFAULT_DAYS = 30
_DAYS = re.compile(r"([0-9]{1,5})d")
COLUMNS = ("used_gpu_s", "idle_gpu_s", "paused_gpu_s", "lost_gpu_s", "held_gpu_s")


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(report)


def report(
    context: typer.Context,
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="One job: what became of its GPUs and its time, and what to change.",
            show_default=False,
            autocompletion=completion.any_jobs,
        ),
    ] = None,
    user: Annotated[str | None, typer.Option(help="Only this user's.", show_default=False)] = None,
    job: Annotated[
        str | None,
        typer.Option(
            help="Only this job, over all of its life.", show_default=False, autocompletion=completion.any_jobs
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="First day, UTC: 7d (ago) or 2026-11-01 (default 30d).", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Last day, UTC, likewise (default: today).", show_default=False)
    ] = None,
    by: Annotated[
        UsageBy | None, typer.Option(help="What each row is about (default user).", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help=f"Draw it, too: a file ending in {', '.join(pictures.SUFFIXES)}.", metavar="FILE", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Comma-separated values, for spreadsheets.", show_default=False)
    ] = False,
) -> None:
    """Show GPU-seconds of users, days or jobs: used, idle, paused, lost; or what became of one job's GPUs and time."""
    if as_json and as_csv:
        raise UserError("--json and --csv exclude each other")
    if plot is not None:
        pictures.check(plot)
    if which is not None:
        if as_csv or any(each is not None for each in (user, job, since, until, by)):
            raise UserError(
                f"report {which}: goes with --json and --plot alone; a table of GPU-seconds is --job {which}"
            )
        _of_job(context, which, as_json, plot)
        return
    if job is not None and (user is not None or since is not None or until is not None or by is not None):
        raise UserError("--job stands alone: a job is reported over all of its life")
    now = time.time()
    first = day_s("--since", since, now) if since is not None else max(0.0, now - DEFAULT_DAYS * DAY_S)
    request = GetUsage(
        by=by or (UsageBy.JOB if job is not None else UsageBy.USER),
        user=user or "",
        job=job or "",
        since_s=first,
        until_s=day_s("--until", until, now) if until is not None else None,
    )
    found = _all_pages(context, request)
    if plot is not None:
        pictures.draw_usage(plot, found.rows, request.by)
    if as_csv:
        _print_csv(found.rows)
    elif as_json:
        rows = [render.plain(row) | {"held_gpu_s": row.gpu_seconds.held_gpu_s} for row in found.rows]
        print_json({"rows": rows, "since_s": found.since_s, "until_s": found.until_s, "time_s": found.time_s})
    else:
        if found.rows:
            show(render.usage_table(found.rows, request.by))
        say(render.usage_line(found, job is not None))


def _of_job(context: typer.Context, job: str, as_json: bool, plot: Path | None) -> None:
    view = of(context).job(job)
    now_s = time.time()
    found = jobreport.report_of(view, now_s)
    if plot is not None:
        pictures.draw_job(plot, view, now_s)
    if as_json:
        print_json(jobreport.document(view, found))
    else:
        print_lines([render.outcome(view, "  "), *map(render.printable, jobreport.lines(view, found, now_s))])


def _all_pages(context: typer.Context, request: GetUsage) -> UsageReport:
    rows: list[UsageRow] = []
    while True:
        page = of(context).ask(request, UsageReport)
        rows += page.rows
        if not page.next:
            return msgspec.structs.replace(page, rows=tuple(rows))
        request = msgspec.structs.replace(request, after=page.next)


def day_s(option: str, text: str, now_s: float) -> float:
    """Return a time on the day that `text` names: so many days ago, or a date. Raises UserError."""
    ago = _DAYS.fullmatch(text)
    if ago is not None:
        return max(0.0, now_s - int(ago[1]) * DAY_S)
    try:
        date = datetime.date.fromisoformat(text)
    except ValueError:
        raise UserError(f"{option}: {text!r} is neither days, such as 7d, nor a date, such as 2026-11-01") from None
    return max(0.0, (date - datetime.date(1970, 1, 1)).days * DAY_S)


def _print_csv(rows: Sequence[UsageRow]) -> None:
    """Print the rows as CSV with a header; GPU-seconds have three decimals."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("user", "day", "job", "phase", *COLUMNS))
    for row in rows:
        phase = row.phase.value if row.phase is not None else ""
        names = (for_spreadsheet(row.user), row.day, for_spreadsheet(row.job), phase)
        writer.writerow((*names, *(f"{getattr(row.gpu_seconds, name):.3f}" for name in COLUMNS)))
