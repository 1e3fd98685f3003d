"""The number of GPUs of each part that a tenant divides among its jobs. Pure.

The GPUs of a view are in parts (`sharing`), in one part if every job may use every GPU. Jobs of one tenant that may use
the same parts are a *group*. GPUs flow from parts to groups to tenants: a GPU more for a tenant may mean that another
tenant has one of another part instead (an augmenting path of Ford and Fulkerson, "Maximal flow through a network",
1956). So a tenant misses a guaranteed GPU only where no division of the parts gives it one, beside the guarantees of the
others. GPUs are given one by one, first to the tenant with the most urgent claim. A tenant that loses a GPU in one part
gets one in another, so that no later step takes GPUs from a tenant. The order is therefore exact: max-min.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """Claim of a tenant. `entitled`: guaranteed GPUs that it can use. `most`: GPUs that it can use and may have."""

    entitled: int
    most: int


@dataclass(frozen=True)
class Group:
    """Jobs of a tenant that may use GPUs of these `parts`, `most` together."""

    tenant: str
    parts: tuple[int, ...]
    most: int


class Flow:
    """GPUs of the groups: `given[g][p]` of part p."""

    def __init__(self, groups: Sequence[Group], sizes: Sequence[int]) -> None:
        self._groups = groups
        self._of: dict[str, list[int]] = {}
        for at, group in enumerate(groups):
            self._of.setdefault(group.tenant, []).append(at)
        self._left = list(sizes)
        self._given = [dict.fromkeys(group.parts, 0) for group in groups]
        self._count = [0] * len(groups)
        self.has = dict.fromkeys(self._of, 0)

    def raise_(self, tenant: str, most: int = 1) -> bool:
        """Give a tenant one more GPU without taking any from another, or up to `most` if these are free.

        Return False if there is no way.
        """
        if not any(self._left):
            return False
        spare = self._spare(tenant)
        for group in spare:
            for part in self._groups[group].parts:
                if (more := min(self._left[part], most, self._groups[group].most - self._count[group])) > 0:
                    self._left[part] -= more
                    self._given[group][part] += more
                    self._count[group] += more
                    self.has[tenant] += more
                    return True
        came: dict[
            int, tuple[int, int, int]
        ] = {}  # to a part: the group that takes it, and the group and part that this one leaves
        queue: list[int] = []

        def reach(group: int, leaves: int, part: int) -> None:
            for there in self._groups[group].parts:
                if there not in came:
                    came[there] = group, leaves, part
                    queue.append(there)

        for group in spare:
            reach(group, -1, -1)
        for part in queue:  # the loop extends the queue
            if self._left[part]:
                self._carry_out(came, part)
                self.has[tenant] += 1
                return True
            for group, given in enumerate(self._given):
                if given.get(part):
                    for other in (group, *self._spare(self._groups[group].tenant)):
                        reach(other, group, part)
        return False

    def rooms(self, tenant: str) -> list[int]:
        """Return the tenant's GPUs by part."""
        found = [0] * len(self._left)
        for group in self._of.get(tenant, ()):
            for part, count in self._given[group].items():
                found[part] += count
        return found

    def _spare(self, tenant: str) -> list[int]:
        """Return the tenant's groups that can use more GPUs."""
        return [at for at in self._of.get(tenant, ()) if self._count[at] < self._groups[at].most]

    def _carry_out(self, came: Mapping[int, tuple[int, int, int]], part: int) -> None:
        self._left[part] -= 1
        while True:
            group, leaves, before = came[part]
            self._given[group][part] += 1
            self._count[group] += 1
            if leaves < 0:
                return
            self._given[leaves][before] -= 1
            self._count[leaves] -= 1
            part = before


def dues(groups: Sequence[Group], sizes: Sequence[int], claimed: Mapping[str, Claim]) -> Flow:
    """Return the GPUs that each tenant is entitled to, as far as its jobs can use them.

    Where the entitlements exceed the GPUs, all tenants get the same fraction of theirs, as nearly as possible.
    """
    flow = Flow(groups, sizes)
    most = {name: alone(groups, sizes, name, claim.entitled).has.get(name, 0) for name, claim in claimed.items()}
    if len(sizes) == 1:  # give many GPUs at once where one by one gives as many: a tenant is at most one GPU ahead
        total = sum(most.values())
        sure = total if total <= sizes[0] else max(0, sizes[0] - len(most))
        for name, own in most.items():
            if own and sure:
                flow.raise_(name, -(-own * sure // total))

    def key(name: str) -> tuple[float, str] | None:
        return (flow.has[name] / most[name], name) if flow.has[name] < most[name] else None

    _hand_out(flow, [name for name in claimed if name in flow.has], key)
    return flow


def raise_to(flow: Flow, claimed: Mapping[str, Claim], has: Mapping[str, int]) -> None:
    """Give the rest: up to the policy's division (`has`), then up to each limit; the tenant that has borrowed least
    comes first; of equals, the one that is farthest below the policy's division."""
    due = dict(flow.has)

    def key(name: str) -> tuple[float | str, ...] | None:
        now = flow.has[name]
        if now >= claimed[name].most:
            return None
        return float(now >= has[name]), now - due[name], now - has[name], name

    _hand_out(flow, [name for name in claimed if name in flow.has], key)


def alone(groups: Sequence[Group], sizes: Sequence[int], tenant: str, most: int) -> Flow:
    """Return the GPUs, up to `most`, that a tenant could use if it were alone."""
    flow = Flow([group for group in groups if group.tenant == tenant], sizes)
    while flow.has and (more := most - flow.has[tenant]) > 0 and flow.raise_(tenant, more):
        pass
    return flow


Key = Callable[[str], tuple[float | str, ...] | None]


def _hand_out(flow: Flow, names: Sequence[str], key: Key) -> None:
    """Give GPUs one by one to the tenant with the least key; a tenant with the key None gets no more."""
    heap = [(at, name) for name in names if (at := key(name)) is not None]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        if flow.raise_(name) and (at := key(name)) is not None:
            heapq.heappush(heap, (at, name))
