"""The documents of the pages, from the controller's answers. Pure.

Texts and tables are those of the commands: `status`, `servers`, `history`, `quota`, `controllers`, `explain`, `report`,
`events`. A job's environment is in none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...protocol.messages import EventView, JobFound, Jobs, JobView, QuotasFound, Servers, ServerView
from .. import explain, history, jobreport, quota, render
from ..formatting import printable
from ..promises import moment
from ..screens.sources import Cluster, Health, explanation_of, gpu_runs
from ..tables import Row, Table


def table(found: Table, links: Sequence[str] = (), users: Sequence[str] = ()) -> dict[str, Any]:
    """Return a table of a command. `links`: the page that each row leads to; `users`: the user of each
    row."""
    return {
        "columns": [[column.title, column.right] for column in found.columns],
        "note": found.note_title,
        "rows": [_row(row) for row in found.rows],
        "links": list(links),
        "users": list(users),
    }


def _row(row: Row) -> list[Any]:
    return [[[cell.text, cell.style] if cell.style else cell.text for cell in row.cells], list(row.notes)]


def cluster(found: Cluster) -> dict[str, Any]:
    """Return the document of the first page: GPUs by server, and the unfinished jobs."""
    jobs = found.jobs
    return {
        "summary": found.summary(),
        "time": moment(jobs.time_s, jobs.time_s),
        "servers": _gpus(found.servers),
        "jobs": job_table(jobs),
        "refused": [render.refused_job(each) for each in jobs.refused],
    }


def job_table(jobs: Jobs) -> dict[str, Any]:
    return table(
        render.job_table(jobs.jobs, jobs.time_s),
        [job.job for job in jobs.jobs],
        [printable(render.user(job)) for job in jobs.jobs],
    )


def _gpus(servers: Servers) -> list[dict[str, Any]]:
    rows = render.server_table(servers.servers, servers.time_s).rows
    return [_server(view, row) for view, row in zip(servers.servers, rows, strict=True)]


def _server(view: ServerView, row: Row) -> dict[str, Any]:
    """Return a server with its GPUs. The first note of a server in use names its jobs, and how busy their GPUs are."""
    state = row.cells[1]
    return {
        "server": view.server.server,
        "state": [state.text, state.style],
        "free": row.cells[3].text,
        "kind": row.cells[6].text,
        "parts": [[run.first, run.count, run.job, run.why] for run in gpu_runs(view)],
        "used": row.notes[0] if view.used else "",
        "notes": list(row.notes[1:] if view.used else row.notes),
    }


def job(found: JobFound, events: Iterable[EventView]) -> dict[str, Any]:
    """Return the document of a job's page."""
    view, now_s = found.job, found.time_s
    report = jobreport.report_of(view, now_s)
    return {
        "job": view.job,
        "outcome": printable(render.outcome(view, "  ").removeprefix(view.job).strip()),
        "style": render.PHASE_STYLES[view.phase],
        "final": view.phase.final,
        "user": printable(render.user(view)),
        "facts": [[fact.label, fact.text, list(fact.below)] for fact in render.job_facts(view, now_s)],
        "report": [[label, printable(text)] for label, text in jobreport.facts(view, report, now_s)],
        "begin_s": view.submitted_s,
        "end_s": view.finished_s or now_s,
        "asked": [view.spec.gpus.min, view.spec.gpus.max],
        "shares": [
            [change.time_s, change.share, moment(change.time_s, now_s), printable(change.reason)]
            for change in view.shares
        ],
        "resizes": _resizes(view),
        "events": event_rows(events, now_s),
    }


def _resizes(view: JobView) -> list[dict[str, Any]]:
    """Return the measured resizes, each with the time of the share that it led to, if that is known."""
    times = {change.generation: change.time_s for change in view.shares}
    return [
        {
            "time_s": times.get(resize.generation),
            "before": resize.workers_before,
            "after": resize.workers_after,
            "paused_s": resize.paused_s,
            "recovery": resize.recovery,
            "text": render.describe_resize(view.job, resize).partition(": ")[2],
        }
        for resize in view.resizes
    ]


def explanation(found: JobFound) -> dict[str, Any]:
    """Return the reasons for a job's GPUs, and the changes that would alter them."""
    parts = explain.parts(*explanation_of(found), found.time_s)
    return {"parts": [[part.label, printable(part.text), part.command] for part in parts]}


def ended(jobs: Jobs) -> dict[str, Any]:
    """Return finished jobs, the latest first."""
    views = jobs.jobs
    users = [printable(render.user(view)) for view in views]
    found = table(history.table(views, history.USUAL), [view.job for view in views], users)
    return {"jobs": found, "next": jobs.next}


def quotas(found: QuotasFound) -> dict[str, Any]:
    """Return guarantees, limits and use of users and groups, and reservations."""
    return {
        "quotas": table(quota.quota_table(found)) if found.quotas else None,
        "remark": "" if found.quotas else quota.without_quotas(found),
        "left_out": f"{found.left_out} users more have jobs, and no quota of their own" if found.left_out else "",
        "reservations": table(quota.reservation_table(found)) if found.reservations else None,
    }


def health(found: Health) -> dict[str, Any]:
    """Return the state of servers, controllers and policy, and the last events."""
    now_s = found.servers.time_s
    return {
        "servers": table(render.server_table(found.servers_by_trouble(), now_s)),
        "controllers": table(render.controller_table(found.controllers)),
        "troubles": found.troubles(),
        "events": event_rows(found.events, now_s),
    }


def event_rows(events: Iterable[EventView], now_s: float) -> list[list[str]]:
    """Return events, the latest first."""
    rows = [[moment(event.time_s, now_s), event.kind.value, event.job or "", printable(event.text)] for event in events]
    return rows[::-1]
