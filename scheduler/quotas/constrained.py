"""Quotas where not every job may use every GPU: types, memory, GPUs per server, GPUs held for a large job. Pure.

As in `dividing`: the policy shares out all GPUs (`constrained_shares`) as if there were no quotas. Where a tenant gets less than
its claim, or more than its limit, each tenant gets GPUs of each part (`parts`), and the policy shares these out among
its jobs alone. GPUs that it cannot use there are offered to the others.

Shares that precede the policy (of promised jobs, manual ones, and that of the head of the queue) count first for their
tenants.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ..arrays import Ints
from ..constrained_shares import ConstrainedShares, Needed
from ..policies import Policy
from ..view import ClusterView
from .dividing import Claim, Tenancy
from .parts import Flow, Group, dues, raise_to


def share_by_quota(
    view: ClusterView,
    policy: Policy,
    rng: random.Random,
    tenancy: Tenancy,
    without: Collection[int],
    needed: Needed | None = None,
) -> tuple[ConstrainedShares, Ints]:
    """Return the shares under quotas, and the policy's shares without quotas, by row. `without`: rows that get none."""
    first = ConstrainedShares(view, policy, rng, without, needed)
    first.share_out()
    sharing = ConstrainedShares(view, policy, rng, without, needed)
    loose = np.flatnonzero(sharing.begin())
    fixed = {row: int(share) for row, share in enumerate(sharing.given.tolist()) if share}
    tenancy = tenancy.with_held(fixed)
    rows = {
        tenant: np.array(own, dtype=np.int64) for tenant, own in tenancy.rows(set(loose.tolist())).items()
    }  # a tenant without such rows claims nothing
    has = {tenant: int(first.given[own].sum()) for tenant, own in rows.items()}
    claimed = {tenant: _claim(tenancy, tenant, view.total_gpus) for tenant in rows}
    groups = _groups(view, first, rows, claimed)
    flow = dues(groups, sharing.room, claimed)
    due = {tenant: flow.has.get(tenant, 0) for tenant in rows}
    if all(due[tenant] <= has[tenant] <= claimed[tenant].most for tenant in rows):
        return first, first.given.copy()
    raise_to(flow, claimed, has)
    for tenant, own in rows.items():
        sharing.share(own, flow.rooms(tenant))
    _hand_on(sharing, rows, claimed, due, groups)
    return sharing, first.given


def _claim(tenancy: Tenancy, tenant: str, gpus: int) -> Claim:
    quota, held = tenancy.quotas.quota(tenant), tenancy.held.get(tenant, 0)
    most = gpus if quota.most_gpus is None else max(0, quota.most_gpus - held)
    return Claim(min(most, max(0, quota.gpus - held)), most)


def _groups(
    view: ClusterView, first: ConstrainedShares, rows: Mapping[str, Ints], claimed: Mapping[str, Claim]
) -> list[Group]:
    """Group the jobs by their parts. A job with several choices counts for the choice where most GPUs are left."""
    most: dict[tuple[str, tuple[int, ...]], int] = {}
    left = [part.bit_count() for part in first.parts]
    undecided: list[tuple[str, int, list[tuple[int, ...]]]] = []

    def add(tenant: str, row: int, parts: tuple[int, ...]) -> None:
        useful = min(int(view.jobs.max_gpus[row]), sum(first.parts[part].bit_count() for part in parts))
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
    sharing: ConstrainedShares,
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
            room = _bounded(groups, offered, tenant, claimed[tenant].most)
            if sum(room) > has and _better(sharing, rows[tenant], room, has):
                taken = True
                now = sharing.used(rows[tenant])
                left = [more + own - new for more, own, new in zip(left, used[tenant], now, strict=True)]
                used[tenant] = now
        if not taken:
            return


def _bounded(groups: Sequence[Group], offered: Sequence[int], tenant: str, most: int) -> list[int]:
    """Return how many of the offered GPUs, by part, a tenant can use and may have."""
    flow = Flow([group for group in groups if group.tenant == tenant], offered)
    while flow.has.get(tenant, 0) < most and flow.has and flow.raise_(tenant):
        pass
    return flow.rooms(tenant)


def _better(sharing: ConstrainedShares, rows: Ints, room: Sequence[int], has: int) -> bool:
    """Share `room` among a tenant's jobs again, and return whether they get more; otherwise they keep their shares."""
    before = sharing.take(rows)
    sharing.share(rows, room)
    if int(sharing.given[rows].sum()) > has:
        return True
    sharing.give(rows, before)
    return False
