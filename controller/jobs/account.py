"""Account of a job's GPU-seconds, kept in its record, and the amounts booked for its user.

Theory of operation
-------------------
A job *holds* a GPU from the recorded start of a worker there until the end of that worker is known. It also holds GPUs
that are reserved for it while it is measured with fewer. Each held GPU-second is in one of four columns
(docs/accounting.md defines them exactly):

* **used**: a worker trains there, or a process runs there of a job that never calls `elastic.join()`;
* **idle**: all other time, such as starting, loading, saving, waiting, or being reserved;
* **paused**: time that would be used, but stood still in a resize, as measured by the job's leader;
* **lost**: time used since the last durable state that a restart made void, or of a worker that ended before it
  trained.

Accounts are not updated periodically. An account states how many GPUs have been held since a time, and a change of that
number closes the period. Facts that are known only later move time between columns: a pause, a restart, a job that
turns out to be elastic. So the columns always add up to the held time.

All functions are pure. They return the next account and *bookings*, which give the day (UTC) of each GPU-second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from ...protocol.model import GpuSeconds, Value

DAY_S = 86_400.0
MOST_SLICE_S = 400 * DAY_S  # longest time between two changes of an account; a longer one is a clock error
KEPT_DAYS = 400  # most days in `Account.unsaved` and `Account.unjoined`
RECENT_DAYS = 2  # a reported pause was at most so many days ago


class Column(Enum):
    """Column of a GPU-second; the values are the names of the fields of `GpuSeconds`."""

    USED = "used_gpu_s"
    IDLE = "idle_gpu_s"
    PAUSED = "paused_gpu_s"
    LOST = "lost_gpu_s"


class Booking(NamedTuple):
    """Change of a column on one day (counted from 1970-01-01, UTC) by `gpu_s` GPU-seconds, which may be negative."""

    day: int
    column: Column
    gpu_s: float


class OnDay(Value, frozen=True, kw_only=True, array_like=True):
    """GPU-seconds of one day."""

    day: int
    gpu_s: float


class Account(Value, frozen=True, kw_only=True):
    """Recorded account of a job's GPU-seconds."""

    spent: GpuSeconds = GpuSeconds()  # up to `since_s`
    since_s: float = 0.0  # Unix time since when the numbers below hold
    using: int = 0  # number of GPUs in use
    idling: int = 0  # number of GPUs held idle
    joined: bool = False  # a worker has called `elastic.join()`
    unsaved: tuple[OnDay, ...] = ()  # time used since the last durable state
    unjoined: tuple[OnDay, ...] = ()  # time used before any worker called `elastic.join()`
    recent: tuple[OnDay, ...] = ()  # time used on the last days

    @property
    def holds(self) -> int:
        """Number of GPUs held since `since_s`."""
        return self.using + self.idling


Booked = tuple[Account, list[Booking]]


def advanced(account: Account, now: float) -> Booked:
    """Return the account with all time up to `now` counted."""
    if not account.holds:
        return replace(account, since_s=now), []
    spent, bookings, used = account.spent, [], []
    for day, seconds in days_between(account.since_s, now):
        if account.using:
            used.append(OnDay(day=day, gpu_s=account.using * seconds))
            bookings.append(Booking(day, Column.USED, used[-1].gpu_s))
        if account.idling:
            bookings.append(Booking(day, Column.IDLE, account.idling * seconds))
    for _, column, gpu_s in bookings:
        spent = plus(spent, column, gpu_s)
    return replace(
        account,
        spent=spent,
        since_s=now,
        unsaved=_added(account.unsaved, used, KEPT_DAYS),
        unjoined=account.unjoined if account.joined else _added(account.unjoined, used, KEPT_DAYS),
        recent=_added(account.recent, used, RECENT_DAYS),
    ), bookings


def spent_by(account: Account, now: float) -> GpuSeconds:
    """Return the GPU-seconds up to `now`, counted as in `advanced`, without the days."""
    if not account.holds or not 0 < now - account.since_s <= MOST_SLICE_S:
        return account.spent
    seconds, spent = now - account.since_s, account.spent
    return replace(
        spent,
        used_gpu_s=spent.used_gpu_s + account.using * seconds,
        idle_gpu_s=spent.idle_gpu_s + account.idling * seconds,
    )


def joined(account: Account) -> Booked:
    """Return the account after the first call of `elastic.join()`.

    The time before counts as idle, since the job was starting.
    """
    moved, bookings = _moved(account, Column.USED, Column.IDLE, account.unjoined)
    return replace(moved, joined=True, unjoined=(), unsaved=_less(account.unsaved, account.unjoined)), bookings


def saved(account: Account) -> Account:
    """Return the account after all training so far was saved durably."""
    return replace(account, unsaved=()) if account.unsaved else account


def restarted(account: Account) -> Booked:
    """Return the account after a restart from the last durable state: time used since is lost."""
    moved, bookings = _moved(account, Column.USED, Column.LOST, account.unsaved)
    unjoined = _less(account.unjoined, account.unsaved)
    return replace(moved, unsaved=(), unjoined=unjoined, recent=_less(account.recent, account.unsaved)), bookings


def stood_still(account: Account, gpu_s: float) -> Booked:
    """Move `gpu_s` GPU-seconds, which were counted as used, to the paused column for the last resize."""
    left, parts = gpu_s if 0 <= gpu_s < math.inf else 0.0, []
    for part in reversed(account.recent):
        taken = min(left, part.gpu_s)
        if taken > 0:
            parts.append(OnDay(day=part.day, gpu_s=taken))
            left -= taken
    moved, bookings = _moved(account, Column.USED, Column.PAUSED, parts)
    unsaved, recent = _less(account.unsaved, parts), _less(account.recent, parts)
    return replace(moved, unsaved=unsaved, recent=recent), bookings


def died_in_vain(account: Account, since_s: float, now: float, gpus: int) -> Booked:
    """Return the account after a worker that held `gpus` GPUs since `since_s` ended before it trained."""
    parts = [OnDay(day=day, gpu_s=gpus * seconds) for day, seconds in days_between(since_s, now)]
    return _moved(account, Column.IDLE, Column.LOST, parts)


def shifted(account: Account, by_s: float) -> Account:
    """Return the account after the clock was set, with its start moved by `by_s` seconds."""
    return replace(account, since_s=account.since_s + by_s) if account.holds else account


def mended(account: Account, now: float) -> Account:
    """Return `account` without invalid values, which damaged files may contain.

    `accounting.look` detects a clock that was set back since.
    """
    spent = account.spent
    if not all(0 <= each < math.inf for each in columns(spent).values()):
        spent = GpuSeconds()
    found = replace(
        account,
        spent=spent,
        since_s=account.since_s if math.isfinite(account.since_s) else now,
        using=max(0, account.using),
        idling=max(0, account.idling),
        unsaved=_sound(account.unsaved),
        unjoined=_sound(account.unjoined),
        recent=_sound(account.recent),
    )
    return found if found != account else account


def open_since(account: Account, now: float) -> list[Booking]:
    """Return the bookings that would result if the account were closed now."""
    return advanced(account, now)[1]


# ---------------------------------------------------------------------------------------------------------------- arithmetic


def day_of(time_s: float) -> int:
    """Return the day (UTC) of a Unix time, counted from 1970-01-01."""
    return int(time_s // DAY_S)


def days_between(since_s: float, until_s: float) -> Iterator[tuple[int, float]]:
    """Yield the days between two times, and the seconds of each; none if the times show a clock error."""
    if not 0 < until_s - since_s <= MOST_SLICE_S:
        return
    for day in range(day_of(since_s), day_of(until_s) + 1):
        seconds = min(until_s, (day + 1) * DAY_S) - max(since_s, day * DAY_S)
        if seconds > 0:
            yield day, seconds


def columns(spent: GpuSeconds) -> dict[Column, float]:
    return {column: getattr(spent, column.value) for column in Column}


def plus(spent: GpuSeconds, column: Column, gpu_s: float) -> GpuSeconds:
    """Return `spent` with `gpu_s` added to a column, which never becomes negative."""
    return replace(spent, **{column.value: max(0.0, getattr(spent, column.value) + gpu_s)})


def total(parts: Iterable[GpuSeconds]) -> GpuSeconds:
    """Return the sum of all parts."""
    used = idle = paused = lost = 0.0
    for part in parts:  # very many parts if a report spans years
        used += part.used_gpu_s
        idle += part.idle_gpu_s
        paused += part.paused_gpu_s
        lost += part.lost_gpu_s
    return GpuSeconds(used_gpu_s=used, idle_gpu_s=idle, paused_gpu_s=paused, lost_gpu_s=lost)


def _moved(account: Account, source: Column, target: Column, parts: Iterable[OnDay]) -> Booked:
    """Move `parts` from one column to another, at most as much as the column holds."""
    spent, bookings = account.spent, []
    for part in parts:
        gpu_s = min(part.gpu_s, columns(spent)[source])
        if gpu_s > 0:
            spent = plus(plus(spent, source, -gpu_s), target, gpu_s)
            bookings += [Booking(part.day, source, -gpu_s), Booking(part.day, target, gpu_s)]
    return replace(account, spent=spent), bookings


def _added(parts: tuple[OnDay, ...], more: Iterable[OnDay], most: int) -> tuple[OnDay, ...]:
    days = {part.day: part.gpu_s for part in parts}
    for part in more:
        days[part.day] = days.get(part.day, 0.0) + part.gpu_s
    return tuple(OnDay(day=day, gpu_s=days[day]) for day in sorted(days)[-most:])


def _less(parts: tuple[OnDay, ...], gone: Iterable[OnDay]) -> tuple[OnDay, ...]:
    """Return `parts` minus `gone`, day by day, and never below 0."""
    days = {part.day: part.gpu_s for part in parts}
    for part in gone:
        days[part.day] = max(0.0, days.get(part.day, 0.0) - part.gpu_s)
    return tuple(OnDay(day=part.day, gpu_s=days[part.day]) for part in parts if days[part.day] > 0)


def _sound(parts: tuple[OnDay, ...]) -> tuple[OnDay, ...]:
    return tuple(part for part in parts[-KEPT_DAYS:] if 0 <= part.gpu_s < math.inf and part.day >= 0)
