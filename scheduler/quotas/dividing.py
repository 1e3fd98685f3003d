"""Quotas under any policy that may change shares at any time (ElasticFlow 4.4). Pure.

The policy divides the GPUs as if there were no quotas. A user or a group is a tenant. A tenant may get less than its
guarantee although it could use more, or more than its limit. Then each tenant gets GPUs of each part (`parts`;
`sharing` cuts the GPUs into parts where not every job may use every GPU), as near to the policy's division as the
guarantees allow: a tenant borrows more only if others that could use the GPUs have borrowed as many. The policy divides
each tenant's GPUs among its jobs alone. GPUs that a tenant cannot use there are offered to the others. Jobs give GPUs
back as in any other decision: they shrink, or wait with their state kept.

Where the guarantees exceed the GPUs, all guarantees are reduced in proportion. Shares that precede the policy (of
promised jobs, manual ones, that of the head of the queue) count first for their tenants, and so do GPUs that no policy
can take away (`held`: of gangs, and of jobs that start).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..arrays import Ints
from ..sharing import Sharing
from ..view import JobTable
from .parts import Claim, Group, alone, dues, raise_to
from .terms import Quotas


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
        chosen = rows.tolist()
        stays = frozenset(at for at, row in enumerate(chosen) if row in self.stays) if self.stays else self.stays
        return Tenancy(self.quotas, [self.owners[row] for row in chosen], self.held, stays)


def by_quota(sharing: Sharing, jobs: JobTable, tenancy: Tenancy) -> Sharing:
    """Return the policy's shares, as quotas allow them."""
    tenancy = tenancy.with_held(sharing.fixed)
    loose = None if sharing.loose is None else frozenset(sharing.loose.tolist())
    # a tenant without rows about which the policy decides claims nothing
    rows = {tenant: np.array(own, dtype=np.int64) for tenant, own in tenancy.rows(loose).items()}
    gpus = sum([part.bit_count() for part in sharing.parts])
    claimed = {tenant: _claim(tenancy, tenant, gpus) for tenant in rows}
    has = {tenant: int(sharing.given[own].sum()) for tenant, own in rows.items()}
    due = {tenant: min(claimed[tenant].entitled, int(jobs.max_gpus[own].sum())) for tenant, own in rows.items()}
    if all(due[tenant] <= has[tenant] <= claimed[tenant].most for tenant in rows):
        return sharing
    anew = sharing.again()
    groups = _groups(jobs, sharing, rows, claimed)
    flow = dues(groups, anew.room, claimed)
    due = {tenant: flow.has.get(tenant, 0) for tenant in rows}
    if all(due[tenant] <= has[tenant] <= claimed[tenant].most for tenant in rows):
        return sharing
    raise_to(flow, claimed, has)
    for tenant, own in rows.items():
        anew.share(own, flow.rooms(tenant))
    _hand_on(anew, rows, claimed, due, groups)
    return anew


def not_raised(tenancy: Tenancy, given: Ints, most: Ints) -> Ints:
    """Return the maximums `most`, by row, reduced so that no job of a tenant with a limit gets more than its `given`
    share."""
    bound = np.array([tenancy.quotas.quota(tenancy.tenant(row)).most_gpus is not None for row in range(len(given))])
    return np.where(bound, given, most)


def _claim(tenancy: Tenancy, tenant: str, gpus: int) -> Claim:
    quota, held = tenancy.quotas.quota(tenant), tenancy.held.get(tenant, 0)
    most = gpus if quota.most_gpus is None else max(0, quota.most_gpus - held)
    return Claim(min(most, max(0, quota.gpus - held)), most)


def _groups(jobs: JobTable, first: Sharing, rows: Mapping[str, Ints], claimed: Mapping[str, Claim]) -> list[Group]:
    """Group the jobs by their parts. A job with several choices counts for the choice where most GPUs are left."""
    if first.whole:
        most_gpus = np.minimum(jobs.max_gpus, first.caps)
        most_gpus[jobs.min_gpus > most_gpus] = 0
        return [Group(tenant, (0,), int(most_gpus[own].sum())) for tenant, own in rows.items()]
    most: dict[tuple[str, tuple[int, ...]], int] = {}
    left = [part.bit_count() for part in first.parts]
    undecided: list[tuple[str, int, list[tuple[int, ...]]]] = []

    def add(tenant: str, row: int, parts: tuple[int, ...]) -> None:
        useful = min(int(jobs.max_gpus[row]), sum(first.parts[part].bit_count() for part in parts))
        most[tenant, parts] = most.get((tenant, parts), 0) + useful
        wanted = min(useful, claimed[tenant].entitled)
        for part in sorted(parts, key=lambda part: -left[part]):
            taken = min(wanted, max(0, left[part]))
            left[part] -= taken
            wanted -= taken

    for tenant, own in rows.items():
        for row in own.tolist():
            ways = first.ways(row)
            if len(ways) == 1:
                add(tenant, row, ways[0])
            elif ways:
                undecided.append((tenant, row, ways))
    for tenant, row, ways in undecided:
        add(tenant, row, max(ways, key=lambda parts: sum(left[part] for part in parts)))
    return [Group(tenant, parts, useful) for (tenant, parts), useful in most.items()]


def _hand_on(
    sharing: Sharing,
    rows: Mapping[str, Ints],
    claimed: Mapping[str, Claim],
    due: Mapping[str, int],
    groups: Sequence[Group],
) -> None:
    """Offer the remaining GPUs to each tenant, those that have borrowed least first, until no tenant takes any."""
    whole = sharing.room
    used = {tenant: sharing.used(own) for tenant, own in rows.items()}
    left = [size - sum(own[part] for own in used.values()) for part, size in enumerate(whole)]
    for _ in rows:
        taken = False
        for tenant in sorted(rows, key=lambda name: (sum(used[name]) - due[name], name)):
            has = sum(used[tenant])
            if not any(left) or has >= claimed[tenant].most:
                continue
            offered = [own + more for own, more in zip(used[tenant], left, strict=True)]
            room = alone(groups, offered, tenant, claimed[tenant].most).rooms(tenant)
            if sum(room) > has and _better(sharing, rows[tenant], room, has):
                taken = True
                now = sharing.used(rows[tenant])
                left = [more + own - new for more, own, new in zip(left, used[tenant], now, strict=True)]
                used[tenant] = now
        if not taken:
            return


def _better(sharing: Sharing, rows: Ints, room: Sequence[int], has: int) -> bool:
    """Share `room` among a tenant's jobs again, and return whether they get more; otherwise they keep their shares."""
    before = sharing.take(rows)
    sharing.share(rows, room)
    if int(sharing.given[rows].sum()) > has:
        return True
    sharing.give(rows, before)
    return False
