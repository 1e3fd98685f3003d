"""The number of GPUs of each part that a tenant divides among its jobs, where not every job may use every GPU. Pure.

The GPUs of a view are in parts (`constrained_shares`). Jobs of one tenant that may use the same parts are a *group*. GPUs flow
from parts to groups to tenants: a GPU more for a tenant may mean that another tenant has one of another part instead
(an augmenting path of Ford and Fulkerson, "Maximal flow through a network", 1956). So a tenant misses a guaranteed GPU
only where no division of the parts gives it one, beside the guarantees of the others. GPUs are given one by one, first
to the tenant with the most urgent claim. A tenant that loses a GPU in one part gets one in another, so that no later
step takes GPUs from a tenant. The order is therefore exact: max-min.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .dividing import Claim


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

    def raise_(self, tenant: str) -> bool:
        """Give a tenant one more GPU without taking any from another. Return False if there is no way."""
        came: dict[
            int, tuple[int, int, int]
        ] = {}  # to a part: the group that takes it, and the group and part that this one leaves
        queue: list[int] = []

        def reach(group: int, leaves: int, part: int) -> None:
            for there in self._groups[group].parts:
                if there not in came:
                    came[there] = group, leaves, part
                    queue.append(there)

        for group in self._spare(tenant):
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
    alone = {name: _alone(groups, sizes, name, claim.entitled) for name, claim in claimed.items()}

    def key(name: str) -> tuple[float, str] | None:
        return (flow.has[name] / alone[name], name) if flow.has[name] < alone[name] else None

    _hand_out(flow, [name for name in claimed if name in flow.has], key)
    return flow


def raise_to(flow: Flow, claimed: Mapping[str, Claim], has: Mapping[str, int]) -> None:
    """Give the rest: up to the policy's division (`has`), then up to each limit; the tenant that has borrowed least
    comes first."""
    due = dict(flow.has)

    def key(name: str) -> tuple[float, float, str] | None:
        now = flow.has[name]
        if now >= claimed[name].most:
            return None
        return float(now >= has[name]), float(now - due[name]), name

    _hand_out(flow, [name for name in claimed if name in flow.has], key)


def _alone(groups: Sequence[Group], sizes: Sequence[int], tenant: str, most: int) -> int:
    """Return how many GPUs, up to `most`, a tenant could use if it was alone."""
    flow = Flow([group for group in groups if group.tenant == tenant], sizes)
    while flow.has.get(tenant, 0) < most and flow.has and flow.raise_(tenant):
        pass
    return flow.has.get(tenant, 0)


Key = Callable[[str], tuple[float | str, ...] | None]


def _hand_out(flow: Flow, names: Sequence[str], key: Key) -> None:
    """Give GPUs one by one to the tenant with the least key; a tenant with the key None gets no more."""
    heap = [(at, name) for name in names if (at := key(name)) is not None]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        if flow.raise_(name) and (at := key(name)) is not None:
            heapq.heappush(heap, (at, name))
