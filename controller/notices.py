"""Notices about jobs that users have requested (`JobSpec.notify`): their events, and the undelivered notices.

A notice is recorded in the commit of its event, and deleted when every configured channel has accepted it, or finally
refused it. So the next controller delivers the notices that this one has not, and a crash may deliver a notice twice,
but never loses one. Only the KEPT_NOTICES newest are kept: a channel that is away for days must not fill the store.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol.messages import EventKind, EventView
from ..protocol.model import JobId, Notify, Value
from .jobs.job import Job
from .state.effects import Effects

NOTICES = "/notices/"
KEPT_NOTICES = 2000
MAX_TEXT = 2000  # characters of a notice's text

OF_EVENTS: dict[EventKind, tuple[Notify, ...]] = {
    EventKind.STARTED: (Notify.START,),
    EventKind.FINISHED: (Notify.END,),
    EventKind.CANCELLED: (Notify.END,),
    EventKind.FAILED: (Notify.FAIL, Notify.END),
    EventKind.ENDANGERED: (Notify.PROMISE,),
    EventKind.MISSED: (Notify.PROMISE,),
    EventKind.IDLE: (Notify.IDLE,),
}


class Notice(Value, frozen=True, kw_only=True):
    """One notice: an event of a job, with the number of that event."""

    number: int
    event: EventKind
    job: JobId
    name: str
    user: str
    time_s: float  # Unix time
    text: str


def notice_key(number: int) -> str:
    return f"{NOTICES}{number:012d}"


def notice_of(event: EventView, job: Job) -> Notice | None:
    """Return the notice of an event, if the job's user has asked for it."""
    if not set(OF_EVENTS.get(event.kind, ())) & set(job.spec.notify):
        return None
    return Notice(
        number=event.number,
        event=event.kind,
        job=job.id,
        name=job.spec.name,
        user=job.user,
        time_s=event.time_s,
        text=event.text[:MAX_TEXT],
    )


class Notices:
    """The notices that are not delivered yet, by number, the oldest first."""

    def __init__(self, effects: Effects) -> None:
        self.pending: dict[int, Notice] = {}
        self._effects = effects

    def recover(self, notices: Iterable[Notice]) -> None:
        """Take in the notices that the store holds, in any order."""
        self.pending = {notice.number: notice for notice in sorted(notices, key=lambda notice: notice.number)}

    def add(self, notice: Notice) -> None:
        self.pending[notice.number] = notice
        self._effects.put(notice_key(notice.number), notice)
        while len(self.pending) > KEPT_NOTICES:
            self.done(next(iter(self.pending)))

    def done(self, number: int) -> None:
        """Remove a notice that was delivered or given up."""
        if self.pending.pop(number, None) is not None:
            self._effects.delete(notice_key(number))
