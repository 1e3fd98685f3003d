"""GPU types under deadlines: each type is a pool with a plan of its own (`table.situations`).

A promised job runs on one type at a time, so a promise is planned in one pool, which is chosen when the job is admitted
(`decision.decided`). The pools of a cluster have no GPU in common, so the plans of all pools together are a proof that
all promises can be kept. A job that has begun stays in its pool; a waiting one moves to another pool only if the plans
of both pools hold then.

A pool has all GPUs of a name, also such with different amounts of memory. Pools therefore depend on the servers only: no
newcomer divides the pool of a job that has a promise. A job may use a pool if it may use all of its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..kinds import Demand, GpuSort
from ..view import ClusterView, Gpus


@dataclass(frozen=True)
class Pool:
    """The GPUs of one type. `gpus`: as a set of the view; `sizes`: their number on each server that has some."""

    name: str
    gpus: Gpus
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Pools:
    """The pools of a view, at least one. `by_limit`: numbers of the pools that jobs may use, by limit of the view."""

    all: tuple[Pool, ...]
    by_limit: tuple[tuple[int, ...], ...]
    each: tuple[int, ...]  # by limit: the fixed number of GPUs on each server; 0: any number

    def of(self, view: ClusterView, row: int) -> tuple[int, ...]:
        """Return the numbers of the pools that a job may use."""
        return self.by_limit[int(view.limit_of[row])] if view.limit_of is not None else tuple(range(len(self.all)))

    def per_server(self, view: ClusterView, row: int) -> int:
        return self.each[int(view.limit_of[row])] if view.limit_of is not None else 0


def pools(view: ClusterView) -> Pools:
    """Return the pools of a view, in the order of its servers."""
    sorts = dict.fromkeys(sort for server in view.servers for sort, _ in server.by_sort)
    names = list(dict.fromkeys(sort.name for sort in sorts)) or [""]
    if len(names) == 1:
        found = [Pool(names[0], (1 << view.total_gpus) - 1, tuple([len(server.gpus) for server in view.servers]))]
    else:
        found = _by_name(view, names)
    numbers: dict[Demand, tuple[int, ...]] = {}
    for limit in view.limits:
        if limit.demand not in numbers:
            numbers[limit.demand] = _allowed(limit.demand, tuple(sorts), names)
    return Pools(
        tuple(found),
        tuple([numbers[limit.demand] for limit in view.limits]),
        tuple([limit.demand.per_server for limit in view.limits]),
    )


def _by_name(view: ClusterView, names: list[str]) -> list[Pool]:
    gpus: dict[str, Gpus] = dict.fromkeys(names, 0)
    sizes: dict[str, list[int]] = {name: [] for name in names}
    begin = 0
    for server in view.servers:
        own: dict[str, Gpus] = {}
        for sort, mask in server.by_sort:
            own[sort.name] = own.get(sort.name, 0) | mask
        for name, mask in own.items():
            gpus[name] |= mask << begin
            sizes[name].append(mask.bit_count())
        begin += len(server.gpus)
    return [Pool(name, gpus[name], tuple(sizes[name])) for name in names]


def _allowed(demand: Demand, sorts: tuple[GpuSort, ...], names: list[str]) -> tuple[int, ...]:
    by_name: Mapping[str, set[GpuSort]] = {name: {sort for sort in sorts if sort.name == name} for name in names}
    options = demand.options(sorts)
    return tuple(at for at, name in enumerate(names) if any(by_name[name] <= set(option) for option in options))
