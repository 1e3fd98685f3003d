"""Archive of ended jobs that are not in memory any more: the key of each in the store, and their order (cluster 3).

Theory of operation
-------------------
A cluster has many more ended than unfinished jobs. So an ended job leaves the memory once some later jobs have ended:
the store moves its record to ``/archive/DAY/NUMBER/JOB.UID``. The key alone contains the facts that a controller needs
at once: the job's id, its uid and the day of its end. The rest is read when a client asks for it (`requests`).

In key order, jobs are sorted by the day of their end, and within a day by submission. Pages follow that order
backwards, so the jobs that ended last come first. The oldest jobs are forgotten, by number and by age.
"""

from __future__ import annotations

import bisect
import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from ...protocol.model import JobId, job_number
from .records import Submission

PREFIX = "/archive/"
# Part of a key: the job's number.
NUMBER = slice(len(PREFIX) + len("2026-01-31/"), len(PREFIX) + len("2026-01-31/") + 18)
DAY_S = 86_400.0
LAST_S = 253_402_300_799.0  # end of the year 9999, the last date of `datetime`


@dataclass(frozen=True)
class Archived:
    """Facts about a job that its key contains."""

    job: JobId
    uid: str
    key: str

    def has_uid(self, uid: str) -> bool:
        """Return whether a worker with this id and `uid` may belong to this job. Earlier versions sent no `uid`."""
        return not uid or not self.uid or uid == self.uid


def key_of(submission: Submission, finished_s: float) -> str:
    """Return the archive key of a job that ended at `finished_s` (Unix time)."""
    day = datetime.datetime.fromtimestamp(min(max(0.0, finished_s), LAST_S), datetime.UTC).date()
    return f"{PREFIX}{day.isoformat()}/{job_number(submission.job):018d}/{submission.job}.{submission.uid}"


def job_of(key: str) -> Archived:
    """Return the facts that `key` contains."""
    job, _, uid = key.rpartition("/")[2].rpartition(".")
    return Archived(JobId(job), uid, key)


def first_key_of(now: float, days: float) -> str:
    """Return the first possible key of a job that ended at most `days` days before `now`."""
    day = datetime.datetime.fromtimestamp(min(max(0.0, now - days * DAY_S), LAST_S), datetime.UTC).date()
    return f"{PREFIX}{day.isoformat()}/"


class Archive:
    """Keys of all jobs in the archive."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = sorted(keys)
        # Built at the first query, since that takes a tenth of a second for 100,000 keys.
        self._index: _Index | None = None

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._keys)

    @property
    def highest_number(self) -> int:
        """Highest number of an archived job; 0 without any."""
        return int(max((key[NUMBER] for key in self._keys), default="0"))

    def find(self, job: JobId) -> Archived | None:
        key = self._known.by_number.get(job_number(job))
        found = job_of(key) if key is not None else None
        return found if found is not None and found.job == job else None

    def numbered(self, number: int) -> JobId | None:
        """Return the job with this number."""
        key = self._known.by_number.get(number)
        return job_of(key).job if key is not None else None

    def named(self, name: str) -> tuple[int, JobId | None]:
        """Return how many jobs of this name there are, and the newest of them."""
        known = self._known
        count, newest = known.names.get(name, (0, 0))
        return count, job_of(known.by_number[newest]).job if count else None

    def add(self, key: str) -> None:
        bisect.insort(self._keys, key)
        if self._index is not None:
            self._index.add(key)

    def before(self, key: str, most: int) -> tuple[str, ...]:
        """Return up to `most` keys before `key` ("": from the end), the last first."""
        end = bisect.bisect_left(self._keys, key) if key else len(self._keys)
        return tuple(reversed(self._keys[max(0, end - most) : end]))

    def forget(self, most: int, first_key: str, at_once: int) -> tuple[str, ...]:
        """Remove and return the oldest keys, up to `at_once`, that exceed `most` keys or come before `first_key`."""
        too_many = max(len(self._keys) - most, bisect.bisect_left(self._keys, first_key))
        gone = self._keys[: min(max(0, too_many), at_once)]
        if not gone:
            return ()
        del self._keys[: len(gone)]
        if self._index is not None:
            self._index.remove(gone, self._keys)
        return tuple(gone)

    @property
    def _known(self) -> _Index:
        if self._index is None:
            self._index = _Index(self._keys)
        return self._index


class _Index:
    """Archive keys by number and by name."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.by_number: dict[int, str] = {}
        self.names: dict[str, tuple[int, int]] = {}  # per name: the count of jobs, and the number of the newest
        for key in keys:
            self.add(key)

    def add(self, key: str) -> None:
        number, name = _number_and_name(key)
        self.by_number[number] = key
        count, newest = self.names.get(name, (0, 0))
        self.names[name] = (count + 1, max(number, newest))

    def remove(self, gone: Iterable[str], left: Iterable[str]) -> None:
        without_newest: set[str] = set()
        for key in gone:
            number, name = _number_and_name(key)
            self.by_number.pop(number, None)
            count, newest = self.names.pop(name)
            if count > 1:
                self.names[name] = (count - 1, newest)
                if number == newest:
                    without_newest.add(name)
        if without_newest:  # rare: the newest job of a name is forgotten before earlier ones, which ended later
            self._find_newest(without_newest, left)

    def _find_newest(self, names: set[str], keys: Iterable[str]) -> None:
        newest: dict[str, int] = {}
        for number, name in map(_number_and_name, keys):
            if name in names:
                newest[name] = max(number, newest.get(name, 0))
        for name in names & newest.keys():
            self.names[name] = (self.names[name][0], newest[name])


def _number_and_name(key: str) -> tuple[int, str]:
    """Return a job's number and name."""
    return int(key[NUMBER]), key[NUMBER.stop + 1 : key.rindex(".")].rpartition("-")[0]
