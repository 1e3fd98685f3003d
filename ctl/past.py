"""`elasticctl explain JOB --at TIME`: the GPUs that a job had at a time of the past, and the jobs that had others then.

All facts are the records of jobs: the changes of their shares, with the reasons of the scheduler's decisions at that
time. What other decisions were possible then is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from ..protocol.errors import UserError
from ..protocol.messages import Events, EventView, GetEnded, GetEvents, GetJob, GetJobs, JobFound, JobView, ShareChange
from ..protocol.texts import gpu_count
from . import render
from .context import Context
from .formatting import span
from .history import Picked
from .labelled import Part
from .promises import moment

NAMED = 6  # most jobs named in one line
EVENTS = 3  # shown events of the job before that time


@dataclass(frozen=True)
class Past:
    """A job at a past time (Unix time, s), with all other jobs that were submitted and not over then."""

    at_s: float
    now_s: float
    job: JobView
    others: Sequence[JobView]
    events: Sequence[EventView]  # the job's last events before that time

    @property
    def change(self) -> ShareChange | None:
        """The last change of the job's share before that time; None: the job had never had GPUs."""
        return change_at(self.job, self.at_s)

    @property
    def share_gpus(self) -> int:
        return 0 if self.change is None else self.change.share

    @property
    def is_over(self) -> bool:
        return self.job.finished_s is not None and self.job.finished_s <= self.at_s

    @property
    def since_s(self) -> float:
        """The time from which the job had this share, or was over."""
        if self.is_over and self.job.finished_s is not None:
            return self.job.finished_s
        return self.job.submitted_s if self.change is None else self.change.time_s

    @property
    def next(self) -> ShareChange | None:
        """The first change of the share after that time, if any."""
        return next((each for each in self.job.shares if each.time_s > self.at_s), None)

    @property
    def holders(self) -> list[tuple[JobView, int]]:
        """The other jobs with GPUs at that time, and how many, those with most first."""
        found = [(each, change.share) for each in self.others if (change := change_at(each, self.at_s)) is not None]
        return sorted((each for each in found if each[1]), key=lambda each: (-each[1], each[0].submitted_s))

    @property
    def waiting(self) -> list[JobView]:
        """The other jobs that waited at that time, the first submitted first."""
        held = {each.job for each, _ in self.holders}
        return sorted((each for each in self.others if each.job not in held), key=lambda each: each.submitted_s)


def change_at(job: JobView, at_s: float) -> ShareChange | None:
    """Return the last change of a job's share before a time (Unix time, s)."""
    return next((each for each in reversed(job.shares) if each.time_s <= at_s), None)


def past(shared: Context, name: str, at_s: float) -> Past:
    """Ask the controller for a job and all others at a time (Unix time, s). Raises UserError if no record reaches back."""
    found = shared.ask(GetJob(job=name), JobFound)
    job, now_s = found.job, found.time_s
    if at_s > now_s:
        raise UserError("--at: that time is in the future; without --at, explain tells when a waiting job starts")
    if at_s < job.submitted_s:
        raise UserError(f"--at: {job.job} was submitted later, {moment(job.submitted_s, now_s)}")
    first = job.shares[0] if job.shares else None
    started = job.started_s is not None and job.started_s <= at_s
    if first is not None and started and first.time_s > at_s and not first.reason:  # older ones are forgotten
        raise UserError(f"--at: changes of its share are on record since {moment(first.time_s, now_s)}")
    ended = takewhile(lambda view: not Picked(after_s=at_s).is_past(view), shared.client.ended(GetEnded()))
    views = [*shared.client.jobs(GetJobs()).jobs, *ended]
    return Past(at_s, now_s, job, present(views, job, at_s), _events(shared, job, at_s))


def present(views: Sequence[JobView], job: JobView, at_s: float) -> list[JobView]:
    """Return the other jobs that were submitted and not over at a time, each once."""
    by_name = {each.job: each for each in views}  # a job may end between two requests
    return [
        each
        for name, each in by_name.items()
        if name != job.job and each.submitted_s <= at_s and (each.finished_s is None or each.finished_s > at_s)
    ]


def _events(shared: Context, job: JobView, at_s: float) -> list[EventView]:
    """Return the last events of the job before the time, as far as they are on record."""
    found: list[EventView] = []
    after = 0
    while True:
        answer = shared.ask(GetEvents(job=job.job, after=after), Events)
        found = [*found, *(each for each in answer.events if each.time_s <= at_s)][-EVENTS:]
        if not answer.events or answer.events[-1].time_s > at_s:
            return found
        after = answer.events[-1].number


def parts(then: Past) -> Iterator[Part]:
    """Yield the parts of the explanation. Their texts may come from a job or an operator."""
    job, at_s, now_s = then.job, then.at_s, then.now_s
    allowed, share, lasted = render.gpu_range(job.spec), then.share_gpus, span(at_s - then.since_s)
    if then.is_over:
        yield Part("", f"{job.job}, {moment(at_s, now_s)}: {job.phase.value} {lasted} before; it asked for {allowed}")
    else:
        state = f"on {gpu_count(share)} for {lasted}" if share else f"without GPUs for {lasted}"
        yield Part("", f"{job.job}, {moment(at_s, now_s)}: {state}; it asks for {allowed}")
    if then.change is not None:
        yield Part("why", then.change.reason or "the reason is no longer on record")
    for number, event in enumerate(then.events):
        yield Part("" if number else "events", f"{moment(event.time_s, now_s)}  {event.text}")
    holders, waiting = then.holders, then.waiting
    if holders:
        told = [f"{each.job} {gpus}" for each, gpus in holders[:NAMED]]
        yield Part("held by", f"{', '.join([*told, *_more(holders)])}: {gpu_count(sum(gpus for _, gpus in holders))}")
    elif not then.is_over:
        yield Part("held by", "no other job had GPUs")
    if waiting:
        yield Part("waited, too", ", ".join([*(each.job for each in waiting[:NAMED]), *_more(waiting)]))
    if then.next is not None:
        change = then.next
        yield Part("next", f"{moment(change.time_s, now_s)}  {share} -> {change.share}  {change.reason or '-'}")


def _more(found: Sequence[object]) -> list[str]:
    return [f"{len(found) - NAMED} more"] if len(found) > NAMED else []


def document(then: Past) -> dict[str, object]:
    """Return the explanation as a document for programs. Times are Unix times in seconds."""
    change, after = then.change, then.next
    return {
        "job": then.job.job,
        "at_s": then.at_s,
        "time_s": then.now_s,
        "over": then.is_over,
        "share_gpus": then.share_gpus,
        "since_s": then.since_s,
        "reason": change.reason if change is not None else "",
        "events": [{"time_s": each.time_s, "text": each.text} for each in then.events],
        "holders": [{"job": each.job, "share_gpus": gpus} for each, gpus in then.holders],
        "waiting": [each.job for each in then.waiting],
        "next": None if after is None else {"time_s": after.time_s, "share_gpus": after.share, "reason": after.reason},
    }
