"""Quotas beside any policy that may change shares at any time (ElasticFlow 4.4). Pure.

The policy divides the GPUs as if there were no quotas. A user or a group is a tenant. A tenant may get less than its
guarantee although it could use more, or more than its limit. Then each tenant gets a number of GPUs, as near to the
policy's division as the guarantees allow: tenants that have borrowed most give back first. Then the policy divides each
tenant's GPUs among its jobs alone. GPUs that a tenant cannot use go to the others. Jobs give GPUs back as in any other
decision: they shrink, or wait with their state kept.

Where the guarantees exceed the GPUs, all guarantees are reduced in proportion. GPUs that no policy can take away
(`held`: of gangs, and of jobs that start) count first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..arrays import Ints
from ..view import JobTable
from .terms import Quotas

Ask = Callable[[Ints, int], Ints]  # returns the policy's shares of these rows alone, for so many GPUs


@dataclass(frozen=True)
class Tenancy:
    """Owners of the jobs.

    `owners`: the user of each row of the view. `held`: by tenant, GPUs of its jobs that are outside of the view.
    `stays`: rows of jobs that cannot be resized once they have begun (`pinned`).
    """

    quotas: Quotas
    owners: Sequence[str]
    held: Mapping[str, int] = field(default_factory=dict)
    stays: frozenset[int] = frozenset()

    def tenant(self, row: int) -> str:
        """Return the tenant for which a row's GPUs count."""
        return self.quotas.tenant(self.owners[row])

    def rows(self, among: Collection[int] | None = None) -> dict[str, list[int]]:
        """Return the rows by tenant, in the order of their first rows. `among`: only these rows; None: all."""
        found: dict[str, list[int]] = {}
        tenants: dict[str, str] = {}
        for row, owner in enumerate(self.owners):
            if among is not None and row not in among:
                continue
            if owner not in tenants:
                tenants[owner] = self.quotas.tenant(owner)
            found.setdefault(tenants[owner], []).append(row)
        return found

    def with_held(self, gpus: Mapping[int, int]) -> Tenancy:
        """Return the tenancy with further held GPUs, by row, that no policy can take away."""
        held = dict(self.held)
        for row, count in gpus.items():
            tenant = self.tenant(row)
            held[tenant] = held.get(tenant, 0) + count
        return replace(self, held=held)

    def cut(self, rows: Ints) -> Tenancy:
        """Return the tenancy of these rows alone."""
        return Tenancy(self.quotas, [self.owners[row] for row in rows.tolist()], self.held)


@dataclass(frozen=True)
class Claim:
    """Claim of a tenant. `entitled`: guaranteed GPUs that it can use. `most`: GPUs that it can use and may have."""

    entitled: int
    most: int


def claims(jobs: JobTable, gpus: int, tenancy: Tenancy) -> dict[str, Claim]:
    """Return each tenant's claim on `gpus` GPUs."""
    found: dict[str, Claim] = {}
    for tenant, rows in tenancy.rows().items():
        quota, held = tenancy.quotas.quota(tenant), tenancy.held.get(tenant, 0)
        useful = min(int(jobs.max_gpus[rows].sum()), gpus)
        may = useful if quota.most_gpus is None else min(useful, max(0, quota.most_gpus - held))
        found[tenant] = Claim(min(may, max(0, quota.gpus - held)), may)
    total = sum(claim.entitled for claim in found.values())
    if total <= gpus:
        return found
    return {name: Claim(claim.entitled * gpus // total, claim.most) for name, claim in found.items()}


def divide_by_quota(jobs: JobTable, given: Ints, gpus: int, tenancy: Tenancy, ask: Ask) -> Ints:
    """Return the shares that meet every claim. `given`: the policy's shares of `gpus` GPUs, by row of `jobs`."""
    rows = {tenant: np.array(own, dtype=np.int64) for tenant, own in tenancy.rows().items()}
    claimed = claims(jobs, gpus, tenancy)
    has = {tenant: int(given[own].sum()) for tenant, own in rows.items()}
    if all(claim.entitled <= has[tenant] <= claim.most for tenant, claim in claimed.items()):
        return given
    shares = np.zeros_like(given)
    for tenant, budget in _budgets(claimed, has, gpus).items():
        if budget:
            shares[rows[tenant]] = ask(rows[tenant], budget)
    for _ in claimed:  # another tenant may use the rest; each round gives some GPUs, or is the last
        if not _hand_on(shares, rows, claimed, gpus, ask):
            break
    return shares


def not_raised(tenancy: Tenancy, given: Ints, most: Ints) -> Ints:
    """Return the maximums `most`, by row, reduced so that no job of a tenant with a limit gets more than its `given`
    share."""
    bound = np.array([tenancy.quotas.quota(tenancy.tenant(row)).most_gpus is not None for row in range(len(given))])
    return np.where(bound, given, most)


def _budgets(claimed: Mapping[str, Claim], has: Mapping[str, int], gpus: int) -> dict[str, int]:
    """Return how many GPUs each tenant divides among its jobs."""
    budget = {name: min(max(has[name], claim.entitled), claim.most) for name, claim in claimed.items()}
    left = gpus - sum(budget.values())
    takes = left > 0
    heap = [(_excess(name, budget, claimed) * (1 if takes else -1), name) for name in budget]
    heapq.heapify(heap)
    while left and heap:
        _, name = heapq.heappop(heap)
        if budget[name] >= claimed[name].most if takes else budget[name] <= claimed[name].entitled:
            continue
        budget[name] += 1 if takes else -1
        left += -1 if takes else 1
        heapq.heappush(heap, (_excess(name, budget, claimed) * (1 if takes else -1), name))
    return budget


def _excess(name: str, budget: Mapping[str, int], claimed: Mapping[str, Claim]) -> int:
    return budget[name] - claimed[name].entitled


def _hand_on(shares: Ints, rows: Mapping[str, Ints], claimed: Mapping[str, Claim], gpus: int, ask: Ask) -> bool:
    """Offer the remaining GPUs to each tenant, those that have borrowed least first.

    Changes `shares`. Return whether any were taken.
    """
    taken = False
    order = sorted(rows, key=lambda name: (int(shares[rows[name]].sum()) - claimed[name].entitled, name))
    for name in order:
        has, left = int(shares[rows[name]].sum()), gpus - int(shares.sum())
        most = min(claimed[name].most, has + left)
        if left > 0 and most > has:
            tried = ask(rows[name], most)
            if int(tried.sum()) > has:
                shares[rows[name]] = tried
                taken = True
    return taken
