"""What a job has had of the cluster's GPUs, in GPU-seconds: an account in the job's record, and what is booked for its user.

Theory of operation
-------------------
A job *holds* a GPU from the moment that the start of a worker there is recorded until the end of that worker is known, and while
the GPU is kept for it because it is being measured with fewer. Each GPU-second that is held stands in one of four columns
(docs/accounting.md has their exact words):

* **used**: a worker trains there; of a job that never calls `elastic.join()`, its process runs there;
* **idle**: all else, such as starting, loading, saving, waiting, or being kept for it;
* **paused**: it would be used, and stood still in a resize, as the job's leader has measured;
* **lost**: it was used since the last durable state, and a restart has made that void; or a worker ended before it had trained.

Nothing is counted by ticks. An account says how many GPUs have been held since when, and a change of that number closes the time
before. What is known only later moves from one column to another: a pause, a restart, a job that turns out to be elastic. So
the columns always sum up to what was held.

All functions are pure: from an account to the next one, and to *bookings*, which name the day (UTC) of each GPU-second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace

from ...protocol.model import GpuSeconds, Value

DAY_S = 86_400.0
MOST_SLICE_S = 400 * DAY_S  # between two changes of an account; more is a clock's mistake
KEPT_DAYS = 400  # of what a restart would make void
RECENT_DAYS = 2  # in which a pause may have been


class Column(Enum):
    """Where a GPU-second stands; the values are the names of the fields of `GpuSeconds`."""

    USED = "used_gpu_s"
    IDLE = "idle_gpu_s"
    PAUSED = "paused_gpu_s"
    LOST = "lost_gpu_s"


class Booking(NamedTuple):
    """So many GPU-seconds of a day (counted from 1970-01-01, UTC) more, or less, in a column."""

    day: int
    column: Column
    gpu_s: float


class OnDay(Value, frozen=True, kw_only=True, array_like=True):
    """Some GPU-seconds of a day."""

    day: int
    gpu_s: float


class Account(Value, frozen=True, kw_only=True):
    """What is recorded of a job's GPU-seconds."""

    spent: GpuSeconds = GpuSeconds()  # up to `since_s`
    since_s: float = 0.0  # since then it holds (Unix time):
    using: int = 0  # so many GPUs that are used
    idling: int = 0  # and so many that are not
    joined: bool = False  # a worker has called `elastic.join()`
    unsaved: tuple[OnDay, ...] = ()  # used since the last durable state
    unjoined: tuple[OnDay, ...] = ()  # used before any worker has called `elastic.join()`
    recent: tuple[OnDay, ...] = ()  # used on the last days

    @property
    def holds(self) -> int:
        """So many GPUs, since `since_s`."""
        return self.using + self.idling


Booked = tuple[Account, list[Booking]]


def advanced(account: Account, now: float) -> Booked:
    """All is counted up to `now`."""
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
    """What has been had up to `now`: as `advanced` counts, without the days."""
    if not account.holds or not 0 < now - account.since_s <= MOST_SLICE_S:
        return account.spent
    seconds, spent = now - account.since_s, account.spent
    return replace(
        spent,
        used_gpu_s=spent.used_gpu_s + account.using * seconds,
        idle_gpu_s=spent.idle_gpu_s + account.idling * seconds,
    )


def joined(account: Account) -> Booked:
    """A worker has called `elastic.join()`: what ran before was starting."""
    moved, bookings = _moved(account, Column.USED, Column.IDLE, account.unjoined)
    return replace(moved, joined=True, unjoined=(), unsaved=_less(account.unsaved, account.unjoined)), bookings


def saved(account: Account) -> Account:
    """There is a durable state of what has been trained so far."""
    return replace(account, unsaved=()) if account.unsaved else account


def restarted(account: Account) -> Booked:
    """The job begins again with its last durable state: what was used since is lost."""
    moved, bookings = _moved(account, Column.USED, Column.LOST, account.unsaved)
    unjoined = _less(account.unjoined, account.unsaved)
    return replace(moved, unsaved=(), unjoined=unjoined, recent=_less(account.recent, account.unsaved)), bookings


def stood_still(account: Account, gpu_s: float) -> Booked:
    """In the last resize GPUs stood still for so many GPU-seconds, which have just been counted as used."""
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
    """A worker has held so many GPUs since then, and has ended before it had trained."""
    parts = [OnDay(day=day, gpu_s=gpus * seconds) for day, seconds in days_between(since_s, now)]
    return _moved(account, Column.IDLE, Column.LOST, parts)


def shifted(account: Account, by_s: float) -> Account:
    """The clock has been set: what has begun at some time has begun so much later by it."""
    return replace(account, since_s=account.since_s + by_s) if account.holds else account


def mended(account: Account, now: float) -> Account:
    """`account` as it can be reckoned with: files may be spoiled. Whether a clock was set back since, `accounting.look` finds."""
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
    """What would be booked if the account were closed now."""
    return advanced(account, now)[1]


# ---------------------------------------------------------------------------------------------------------------- arithmetic


def day_of(time_s: float) -> int:
    """Which day (UTC) that is, counted from 1970-01-01."""
    return int(time_s // DAY_S)


def days_between(since_s: float, until_s: float) -> Iterator[tuple[int, float]]:
    """The days from one time to another, and how many seconds of each are between them. None: a clock is wrong."""
    if not 0 < until_s - since_s <= MOST_SLICE_S:
        return
    for day in range(day_of(since_s), day_of(until_s) + 1):
        seconds = min(until_s, (day + 1) * DAY_S) - max(since_s, day * DAY_S)
        if seconds > 0:
            yield day, seconds


def columns(spent: GpuSeconds) -> dict[Column, float]:
    return {column: getattr(spent, column.value) for column in Column}


def plus(spent: GpuSeconds, column: Column, gpu_s: float) -> GpuSeconds:
    """`spent` with so much more in a column; never less than nothing."""
    return replace(spent, **{column.value: max(0.0, getattr(spent, column.value) + gpu_s)})


def total(parts: Iterable[GpuSeconds]) -> GpuSeconds:
    """Their sum."""
    used = idle = paused = lost = 0.0
    for part in parts:  # very many, where a report is over years
        used += part.used_gpu_s
        idle += part.idle_gpu_s
        paused += part.paused_gpu_s
        lost += part.lost_gpu_s
    return GpuSeconds(used_gpu_s=used, idle_gpu_s=idle, paused_gpu_s=paused, lost_gpu_s=lost)


def _moved(account: Account, source: Column, target: Column, parts: Iterable[OnDay]) -> Booked:
    """`parts` of one column stand in another from now on; no more than there is."""
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
    """`parts` without `gone`, day by day, as far as it is there."""
    days = {part.day: part.gpu_s for part in parts}
    for part in gone:
        days[part.day] = max(0.0, days.get(part.day, 0.0) - part.gpu_s)
    return tuple(OnDay(day=part.day, gpu_s=days[part.day]) for part in parts if days[part.day] > 0)


def _sound(parts: tuple[OnDay, ...]) -> tuple[OnDay, ...]:
    return tuple(part for part in parts[-KEPT_DAYS:] if 0 <= part.gpu_s < math.inf and part.day >= 0)
