"""`elasticctl events`: the cluster's events, with times and reasons."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from ..protocol.messages import Events, GetEvents
from . import completion, render
from .context import JSON, of, print_json, print_lines
from .logs import since_s

FOLLOW_S = 0.5
PAGE = 1000


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(events)


def events(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(help="Only those of one job.", show_default=False, autocompletion=completion.any_jobs),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only the last 10m, 2h, ..., or from a time on: 14:30, 2026-03-01T08:00.", show_default=False
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show what has happened in the cluster."""
    shared = of(context)
    name = shared.job(job).job if job is not None else None
    after, after_s = 0, 0.0 if since is None else since_s(since, time.time())
    collected = []
    while True:
        page = shared.ask(GetEvents(after=after, job=name, limit=PAGE), Events).events
        for event in page:
            after = event.number
            if event.time_s < after_s:
                continue
            if as_json and follow:
                print(json.dumps(render.plain(event)))  # a stream: one document a line
            elif as_json:
                collected.append(event)
            else:
                print_lines([render.event_line(event)])
        sys.stdout.flush()
        if len(page) == PAGE:
            continue
        if not follow:
            break
        time.sleep(FOLLOW_S)
    if as_json:
        print_json({"events": render.plain(collected)})
