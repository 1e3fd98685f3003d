"""The owners of simulated jobs: their quotas, and how many unfinished jobs each has."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ..scheduler.arrays import Ints
from ..scheduler.quotas.dividing import Tenancy
from ..scheduler.quotas.hours import Hours
from ..scheduler.quotas.terms import NO_QUOTAS


class Promised:
    """The GPU time that is promised to the owners of jobs, which are given by row of a view."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._owners, self._hours = tenancy.owners, Hours(tenancy.quotas)

    def add(self, row: int, gpu_s: float) -> None:
        self._hours.add(self._owners[row], gpu_s)

    def beyond(self, row: int, gpu_s: float) -> str:
        return self._hours.beyond(self._owners[row], gpu_s)


class Tenants:
    """Jobs are given by number. Only admitted jobs count, until they end."""

    def __init__(self, users: Sequence[str] | None, tenancy: Tenancy | None) -> None:
        """`users`: of each job; None: unknown. `tenancy`: the owner of each job, and the quotas; None: there are none."""
        self._users = users
        self._tenancy = tenancy
        quotas, owners = (tenancy.quotas, set(tenancy.owners)) if tenancy is not None else (NO_QUOTAS, set[str]())
        self._bounded = any(math.isfinite(Hours(quotas).left_gpu_s(owner)) for owner in owners)
        self._of_user: Counter[str] = Counter()
        self._of_owner: Counter[str] = Counter()

    def user(self, job: int) -> tuple[str, int]:
        """Return a job's user ("": unknown) and how many unfinished jobs that user has."""
        user = self._users[job] if self._users is not None else ""
        return user, self._of_user[user]

    def refusal(self, job: int) -> str:
        """Return why quotas have no room for a job that arrives; "" if they have."""
        if self._tenancy is None:
            return ""
        return self._tenancy.quotas.refusal(self._tenancy.owners[job], self._of_owner.__getitem__)

    def came(self, job: int) -> None:
        """Count an admitted job."""
        self._count([job], 1)

    def left(self, jobs: Sequence[int]) -> None:
        """Count jobs no more that have ended."""
        self._count(jobs, -1)

    def of(self, jobs: Ints) -> Tenancy | None:
        """Return the tenancy of a decision about these jobs."""
        return None if self._tenancy is None else self._tenancy.cut(jobs)

    def promised(self, jobs: Ints) -> Promised | None:
        """Return the bound on the GPU time of promised deadlines, for an admission that sees these jobs; None: none."""
        return None if self._tenancy is None or not self._bounded else Promised(self._tenancy.cut(jobs))

    def _count(self, jobs: Sequence[int], by: int) -> None:
        for job in jobs:
            if self._users is not None:
                self._of_user[self._users[job]] += by
            if self._tenancy is not None:
                self._of_owner[self._tenancy.owners[job]] += by
