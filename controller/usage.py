"""Usage of GPUs: the sum of the GPU-seconds that jobs book (`jobs.account`), by user and day (UTC), kept for years.

Each record in the store holds one user's month, and is committed together with the changes of the jobs that it counts. A user
is an authenticated name, or, on a single user's machine, the name that the job was submitted with. The number of records is
bounded: the oldest months are deleted first, and users beyond MOST_USERS in one month are counted together as OTHERS.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from ..protocol.model import GpuSeconds, JobId, Value
from .jobs.account import DAY_S, Booking, day_of, open_since, plus, total
from .jobs.job import Job

PREFIX = "/usage/"
NOBODY = "(nobody)"  # a job without a user
OTHERS = "(others)"
MOST_USERS = 5000  # most users of one month; all others are counted together
MOST_RECORDS = 100_000
LAST_DAY = 2_932_896  # last day of the year 9999


class MonthRecord(Value, frozen=True, kw_only=True):
    """Record of one user's month: GPU-seconds by day, counted from 1970-01-01."""

    days: dict[int, GpuSeconds] = {}


def user_of(job: Job) -> str:
    """Return the user that the GPU-seconds of `job` are counted for."""
    return job.user or NOBODY  # reports use the same name (`requests.usage`)


def date_of(day: int) -> datetime.date:
    """Return the date of a day that is counted from 1970-01-01."""
    return datetime.date(1970, 1, 1) + datetime.timedelta(days=min(max(0, day), LAST_DAY))


def month_of(day: int) -> str:
    """Return the month of a day, such as "2026-11"."""
    return date_of(day).isoformat()[:7]


def key_of(month: str, user: str) -> str:
    return f"{PREFIX}{month}/{user}"


class Usage:
    """GPU-seconds of all users by month and day, and the jobs that hold GPUs now."""

    def __init__(self) -> None:
        self._months: dict[str, dict[str, dict[int, GpuSeconds]]] = {}  # by month and user
        self._count = 0
        self._changed: dict[str, None] = {}  # keys of changed records
        self._gone: list[str] = []  # keys of records to delete
        self._holding: dict[JobId, Job] = {}

    # -- bookings

    def book(self, job: Job, bookings: Iterable[Booking]) -> None:
        """Add the bookings of `job` to the usage of its user."""
        user = user_of(job)
        for day, column, gpu_s in bookings:
            month = month_of(day)
            name = self._name(month, user)
            days = self._month(month, name)
            days[day] = plus(days.get(day, GpuSeconds()), column, gpu_s)
            self._changed[key_of(month, name)] = None

    def holds(self, job: Job) -> None:
        """Note whether `job` holds GPUs."""
        if job.record.gpu_account.holds:
            self._holding[job.id] = job
        else:
            self._holding.pop(job.id, None)

    def forget_before(self, day: int) -> None:
        """Delete the months before the month of `day`, and the oldest ones as long as there are more than MOST_RECORDS."""
        first = month_of(day)
        for month in sorted(self._months):
            if month >= first and self._count <= MOST_RECORDS:
                return
            users = self._months.pop(month)
            self._count -= len(users)
            for user in users:
                self._changed.pop(key_of(month, user), None)
                self._gone.append(key_of(month, user))

    @property
    def has_changed(self) -> bool:
        """Whether there are changes to record."""
        return bool(self._changed or self._gone)

    def take_changed(self) -> tuple[dict[str, MonthRecord], list[str]]:
        """Return the changes since the last call: records by key, and the keys of deleted records."""
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, []
        return {key: self._record(key) for key in changed}, gone

    def recover(self, key: str, record: MonthRecord) -> None:
        """Take in a record of the store, without days that hold negative or infinite numbers."""
        _, _, month, user = key.split("/", 3)
        days = self._month(month, user)
        days |= {day: spent for day, spent in record.days.items() if 0 <= spent.held_gpu_s < math.inf}

    # -- queries

    @property
    def holding(self) -> tuple[Job, ...]:
        """The jobs that hold GPUs, in the order of submission."""
        return tuple(sorted(self._holding.values(), key=lambda job: job.number))

    def records(self) -> dict[str, MonthRecord]:
        """Return all records that the store must hold, by key."""
        keys = [key_of(month, user) for month, users in self._months.items() for user in users]
        return {key: self._record(key) for key in keys}

    def by_user(self, first: int, last: int, now: float, user: str = "") -> dict[str, GpuSeconds]:
        """Return the usage by user from the `first` to the `last` day, both included; `user`: of this user alone."""
        found: dict[str, list[GpuSeconds]] = {}
        for month, users in self._between(first, last):
            whole = month_of(first - 1) < month < month_of(last + 1)
            for name in users if not user else {user} & users.keys():
                days = users[name]
                found.setdefault(name, []).extend(
                    days.values() if whole else (days[day] for day in days if first <= day <= last)
                )
        for name, day, spent in self._open(now):
            if first <= day <= last and user in ("", name):
                found.setdefault(name, []).append(spent)
        return {name: total(found[name]) for name in sorted(found)}

    def by_day(self, first: int, last: int, now: float, user: str = "") -> dict[int, GpuSeconds]:
        """Return the usage by day, of all users or of one; days without usage are left out."""
        found: dict[int, list[GpuSeconds]] = {}
        for _, users in self._between(first, last):
            for name in users if not user else {user} & users.keys():
                for day, spent in users[name].items():
                    if first <= day <= last:
                        found.setdefault(day, []).append(spent)
        for name, day, spent in self._open(now):
            if first <= day <= last and user in ("", name):
                found.setdefault(day, []).append(spent)
        return {day: total(found[day]) for day in sorted(found)}

    @property
    def first_day(self) -> int | None:
        """The first day with usage; None: there is no usage."""
        found = [day_of(job.record.gpu_account.since_s) for job in self._holding.values()]
        if self._months:
            found += [day for days in self._months[min(self._months)].values() for day in days]
        return min(found, default=None)

    # -- details

    def _between(self, first: int, last: int) -> Iterator[tuple[str, Mapping[str, dict[int, GpuSeconds]]]]:
        for month in sorted(self._months):
            if month_of(first) <= month <= month_of(last):
                yield month, self._months[month]

    def _open(self, now: float) -> Iterator[tuple[str, int, GpuSeconds]]:
        """Yield user, day and GPU-seconds of the jobs that hold GPUs, since their accounts were last advanced."""
        for job in self.holding:
            for day, column, gpu_s in open_since(job.record.gpu_account, now):
                yield user_of(job), day, plus(GpuSeconds(), column, gpu_s)

    def _name(self, month: str, user: str) -> str:
        users = self._months.get(month, {})
        return user if user in users or len(users) < MOST_USERS else OTHERS

    def _month(self, month: str, user: str) -> dict[int, GpuSeconds]:
        users = self._months.setdefault(month, {})
        if user not in users:
            users[user] = {}
            self._count += 1
        return users[user]

    def _record(self, key: str) -> MonthRecord:
        _, _, month, user = key.split("/", 3)
        return MonthRecord(days=dict(sorted(self._months[month][user].items())))


def first_kept(now: float, days: float) -> int:
    """Return the first day that is kept, if usage is kept for `days` days."""
    return max(0, int((now - days * DAY_S) // DAY_S))


DECODER = msgspec.msgpack.Decoder(MonthRecord)
