"""GPUs that are given until a job ends: to gangs, and to the head of the queue for which GPUs are held. Pure.

A tenant that lends idle GPUs to an elastic job gets them back within a step. A gang keeps its first GPUs until it ends,
and its end is not known. So gangs do not borrow: after one has begun, every tenant can still get its guarantee if all
other jobs shrink. With g the guarantee of a tenant, and f the GPUs of its gangs, that is

    sum over all tenants of max(g, f)  <=  GPUs

A gang begins if that holds with the gang included, or if the gang stays within its own tenant's guarantee. Guarantees
count from the time that they are made, also those of users without jobs. A gang with a range of GPUs begins with no
more GPUs than this condition allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from ..arrays import Ints
from ..view import ClusterView, Reason, ReasonCode
from .dividing import Tenancy
from .terms import Quotas


class Pinned:
    """Numbers of GPUs that may still be given to each tenant permanently."""

    def __init__(self, quotas: Quotas, owners: Iterable[str], fixed: Mapping[str, int], gpus: int) -> None:
        """`owners`: users with jobs. `fixed`: GPUs of each tenant's gangs. `gpus`: all GPUs, theirs included."""
        self._quotas = quotas
        self._fixed = dict(fixed)
        tenants = dict.fromkeys(
            [*(quotas.tenant(name) for name in quotas.users), *(f"group {name}" for name in quotas.groups), *fixed]
        )
        tenants |= dict.fromkeys(map(quotas.tenant, dict.fromkeys(owners)))
        self._spare = gpus - sum(self._counts(tenant) for tenant in tenants)

    def most(self, tenant: str) -> int:
        """Return the number of further GPUs that the tenant may get permanently."""
        quota, fixed = self._quotas.quota(tenant), self._fixed.get(tenant, 0)
        most = max(0, quota.gpus - fixed) + max(0, self._spare)
        return most if quota.most_gpus is None else max(0, min(most, quota.most_gpus - fixed))

    def take(self, tenant: str, gpus: int) -> None:
        """Count GPUs that are given permanently."""
        before = self._counts(tenant)
        self._fixed[tenant] = self._fixed.get(tenant, 0) + gpus
        self._spare -= self._counts(tenant) - before

    def _counts(self, tenant: str) -> int:
        return max(self._quotas.quota(tenant).gpus, self._fixed.get(tenant, 0))


@dataclass(frozen=True)
class Bounded:
    """A view in which no gang can use more GPUs than it may begin with, and the rows of gangs that may not begin at
    all."""

    view: ClusterView
    without: frozenset[int]


def lasting(view: ClusterView, tenancy: Tenancy) -> Pinned:
    """Return the state before any GPU of the view is given for good, except manual shares and GPUs held for the head of
    the queue."""
    gpus = view.total_gpus + sum(tenancy.held.values())
    found = Pinned(tenancy.quotas, tenancy.owners, tenancy.held, gpus)
    for row, share in view.manual_shares.items():
        found.take(tenancy.tenant(row), share)
    if view.reservation is not None:
        found.take(tenancy.tenant(view.reservation.row), view.reservation.gpus)
    return found


def bounded(view: ClusterView, tenancy: Tenancy) -> Bounded:
    """Limit each gang by itself."""
    gangs, may = _gangs(view, tenancy), lasting(view, tenancy)
    if not gangs:
        return Bounded(view, frozenset())
    most = view.jobs.max_gpus.copy()
    most[gangs] = np.minimum(most[gangs], [may.most(tenancy.tenant(row)) for row in gangs])
    return _capped(view, most)


def too_many(view: ClusterView, tenancy: Tenancy, shares: Mapping[int, int]) -> Bounded | None:
    """Limit gangs that were given these shares, by row, and may not begin all together; None if all may begin.

    The first gangs keep their shares. The others, and those that got none, wait for the next decision.
    """
    gangs, may = _gangs(view, tenancy), lasting(view, tenancy)
    most, over = view.jobs.max_gpus.copy(), False
    for row in gangs:
        share, tenant = shares.get(row, 0), tenancy.tenant(row)
        fits = share <= may.most(tenant)
        over |= not fits
        most[row] = share if fits else 0
        if fits:
            may.take(tenant, share)
    return _capped(view, most) if over else None


def _gangs(view: ClusterView, tenancy: Tenancy) -> list[int]:
    """Return the rows of gangs, those with GPUs first."""
    head = view.reservation.row if view.reservation is not None else None
    rows = [row for row in tenancy.stays if row != head and row not in view.manual_shares]
    return sorted(rows, key=lambda row: (row not in view.placements, row))


def _capped(view: ClusterView, most: Ints) -> Bounded:
    if (most == view.jobs.max_gpus).all():
        return Bounded(view, frozenset())
    least = view.jobs.min_gpus
    without = frozenset(np.flatnonzero(most < least).tolist())
    return Bounded(structs.replace(view, jobs=view.jobs.within(np.maximum(most, least))), without)


def told(tenancy: Tenancy, row: int, without: Collection[int]) -> Reason | None:
    """Return why a gang does not begin, where quotas are the reason."""
    if row not in without:
        return None
    tenant = tenancy.tenant(row)
    quota, held = tenancy.quotas.quota(tenant), tenancy.held.get(tenant, 0)
    whose = tenant.removeprefix("user ")
    text = "waits for GPUs that nobody else is guaranteed: it cannot be resized, so it could not give them back"
    return Reason(ReasonCode.QUOTA, f"{text} ({whose} has {held} of {quota.gpus} in such jobs)")
