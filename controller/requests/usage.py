"""Reports of GPU-seconds by user, day or job (docs/accounting.md).

Every principal that may see jobs may see the reports.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator

from msgspec.structs import replace

from ...protocol.errors import UserError
from ...protocol.messages import GetJobs, GetUsage, JobView, UsageBy, UsageReport, UsageRow
from ...protocol.principals import Principal
from ..cluster import Cluster
from ..jobs.account import DAY_S, day_of
from ..usage import LAST_DAY, NOBODY, date_of
from .finding import find_job
from .pages import MAX_ON_PAGE, Fetched, jobs_page
from .views import job_view, troubles_of

MOST_DAYS = 120  # days on a page


def report(cluster: Cluster, now: float, who: Principal, request: GetUsage, fetched: Fetched) -> UsageReport:
    """Return a page of the report. Raises NotAtHand, UserError."""
    first = _day("since_s", request.since_s)
    last = _day("until_s", now if request.until_s is None else request.until_s)
    if last < first:
        raise UserError(f"the last day, {date_of(last)}, is before the first one, {date_of(first)}")
    page = UsageReport(rows=(), since_s=first * DAY_S, until_s=(last + 1) * DAY_S, time_s=now)
    if request.job:
        job = find_job(cluster, who, request.job, fetched)
        return replace(page, rows=(_row(job_view(cluster, now, who, job, troubles_of(cluster, now))),))
    if request.by is UsageBy.JOB:
        return _by_job(cluster, now, who, request, fetched, page)
    if request.by is UsageBy.DAY:
        return _by_day(cluster, now, request, page, first, last)
    names = cluster.jobs.usage.by_user(first, last, now, request.user)
    rows = [UsageRow(gpu_seconds=names[name], user=name) for name in names if name > request.after]
    limit = max(1, min(request.limit, MAX_ON_PAGE))
    return replace(page, rows=tuple(rows[:limit]), next=rows[limit - 1].user if len(rows) > limit else "")


def _by_day(cluster: Cluster, now: float, request: GetUsage, page: UsageReport, first: int, last: int) -> UsageReport:
    """Return rows by day, the oldest first. Days before the first recorded one are left out."""
    known = cluster.jobs.usage.first_day
    first = max(first, min(known if known is not None else last, last))
    if request.after:
        try:
            first = max(first, (datetime.date.fromisoformat(request.after) - date_of(0)).days + 1)
        except ValueError:
            raise UserError(f"after: {request.after[:80]!r} is not where a page has ended") from None
    end = min(last, first + min(max(1, request.limit), MOST_DAYS) - 1)
    days = cluster.jobs.usage.by_day(first, end, now, request.user)
    rows = tuple(
        UsageRow(gpu_seconds=spent, day=date_of(day).isoformat(), user=request.user) for day, spent in days.items()
    )
    return replace(page, rows=rows, next=date_of(end).isoformat() if end < last else "")


def _by_job(
    cluster: Cluster, now: float, who: Principal, request: GetUsage, fetched: Fetched, page: UsageReport
) -> UsageReport:
    """Return rows by job: unfinished jobs first, then ended ones, the last ended first."""
    jobs = jobs_page(cluster, now, who, GetJobs(final_too=True, after=request.after, limit=request.limit), fetched)
    rows = tuple(_row(view) for view in _within(jobs.jobs, request.user, page))
    over = any(view.finished_s is not None and view.finished_s < page.since_s for view in jobs.jobs)
    return replace(page, rows=rows, next="" if over else jobs.next)


def _within(jobs: tuple[JobView, ...], user: str, page: UsageReport) -> Iterator[JobView]:
    for view in jobs:
        ends_s = view.finished_s if view.finished_s is not None else math.inf
        within = view.submitted_s < page.until_s and ends_s >= page.since_s
        if within and user in ("", _user(view)) and view.gpu_seconds.held_gpu_s > 0:
            yield view


def _row(view: JobView) -> UsageRow:
    return UsageRow(gpu_seconds=view.gpu_seconds, user=_user(view), job=view.job, phase=view.phase)


def _user(view: JobView) -> str:
    return view.spec.user or view.owner or NOBODY


def _day(name: str, time_s: float) -> int:
    if not math.isfinite(time_s) or not 0 <= time_s < LAST_DAY * DAY_S:
        raise UserError(f"{name}: {time_s} is no time that a report can begin or end with")
    return day_of(time_s)
