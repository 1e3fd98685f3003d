"""Quotas of users and groups, with their present use (docs/quotas.md).

Every principal that may see jobs may see the quotas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from ...protocol.messages import QuotasFound, QuotaView
from ...scheduler.quotas.hours import HOUR_S
from ...scheduler.quotas.terms import Quota, Quotas
from ..cluster import Cluster
from .reserving import reservation_views

MOST_UNNAMED = 500  # users without a quota, in an answer


@dataclass
class _Has:
    """GPUs and jobs that one user or tenant has now."""

    gpus: int = 0
    jobs: int = 0
    promised_gpu_s: float = 0.0


@dataclass
class _Use:
    """GPUs and jobs that all users and all tenants have now."""

    of: dict[str, _Has] = field(default_factory=dict)
    tenants: dict[str, _Has] = field(default_factory=dict)

    def tenant(self, name: str) -> _Has:
        return self.tenants.get(name, _Has())


def quotas_found(cluster: Cluster, now: float) -> QuotasFound:
    """Return groups first, then users with a quota, then other users with jobs, each sorted by name."""
    quotas = cluster.planning.decider.scheduler.stages.quotas
    total = sum(
        cluster.servers.usable(gpu) for session in cluster.servers.sessions.values() for gpu in session.whole.addresses
    )
    reservations = reservation_views(cluster, now)
    if not quotas.any:
        return QuotasFound(quotas=(), total_gpus=total, time_s=now, reservations=reservations)
    use = _use(cluster, quotas)
    unnamed = sorted(
        name for name in use.of if name not in quotas.users and quotas.group_of(name) is None and use.of[name].jobs
    )
    views = [
        *(_group(quotas, use, name) for name in sorted(quotas.groups)),
        *(_user(quotas, use, name) for name in (*sorted(quotas.users), *unnamed[:MOST_UNNAMED])),
    ]
    left_out = max(0, len(unnamed) - MOST_UNNAMED)
    return QuotasFound(
        quotas=tuple(_with_lent(views, total)),
        total_gpus=total,
        time_s=now,
        left_out=left_out,
        reservations=reservations,
    )


def _use(cluster: Cluster, quotas: Quotas) -> _Use:
    use, tenant_of = _Use(), dict[str, str]()
    for job in cluster.jobs.index.live.values():
        owner, gpus = job.user, len(job.own_gpus)
        promised_gpu_s = job.planned.gpu_s if job.promised else 0.0
        tenant = tenant_of.get(owner) or tenant_of.setdefault(owner, quotas.tenant(owner))
        for has in (use.of.setdefault(owner, _Has()), use.tenants.setdefault(tenant, _Has())):
            has.gpus += gpus
            has.jobs += 1
            has.promised_gpu_s += promised_gpu_s
    return use


def _group(quotas: Quotas, use: _Use, name: str) -> QuotaView:
    group = quotas.groups[name]
    return _view(name, group, use.tenant(f"group {name}"), members=group.members)


def _user(quotas: Quotas, use: _Use, name: str) -> QuotaView:
    view = _view(name, quotas.own(name), use.of.get(name, _Has()))
    group = quotas.group_of(name)
    return replace(view, group=group, borrowed_gpus=0) if group is not None else view


def _view(name: str, quota: Quota, has: _Has, members: tuple[str, ...] = ()) -> QuotaView:
    return QuotaView(
        name=name,
        members=members,
        gpus=quota.gpus,
        most_gpus=quota.most_gpus,
        used_gpus=has.gpus,
        borrowed_gpus=max(0, has.gpus - quota.gpus),
        jobs=has.jobs,
        most_jobs=quota.jobs,
        promised_gpu_hours=has.promised_gpu_s / HOUR_S,
        most_promised_gpu_hours=quota.promised_gpu_hours,
    )


def _with_lent(views: list[QuotaView], total: int) -> Iterator[QuotaView]:
    """Yield the views with the number of GPUs lent to others.

    Borrowed GPUs are first taken from those that are guaranteed to no tenant. The rest is lent by the tenants that use
    less than their guarantee, in proportion to the unused part.
    """
    idle = [0 if view.group else max(0, view.gpus - view.used_gpus) for view in views]
    guaranteed = sum(view.gpus for view in views)
    lent = max(0, sum(view.borrowed_gpus for view in views) - max(0, total - guaranteed))
    left = sum(idle)
    for view, own in zip(views, idle, strict=True):
        part = min(own, -(-lent * own // left)) if left else 0  # rounded up, so that rounding loses no GPU
        lent, left = max(0, lent - part), left - own
        yield replace(view, lent_gpus=part) if part else view
