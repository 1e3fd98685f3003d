"""Cores and memory: no server gets more workers than it has cores and memory for. Pure, and the same for every policy.

Policies and placement know GPUs only. Where their decision asks more of a server than it has, some of its jobs may not
use all of their GPUs there, and everything is decided again: so a job that does not fit on one server is tried on
another. Jobs that begin there are spread over the servers that have room (`Room.spread`), since a placement that knows
GPUs only would put all of them on the next server together. After `ROUNDS` decisions, jobs that still do not fit keep
the GPUs on which they fit.

A server's cores and memory go first to promised jobs, then by priority, then to the jobs that have GPUs there, then in
the order of submission; each job's minimum comes before the rest of any.

A change of placement can be ordered once there is room for it beside the processes that are there now (`Room`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from .amounts import Amounts, Capacity, Need
from .decision import Decision, Stage, Step
from .placement.fewest_servers import layout_of
from .sets import some, union
from .view import ClusterView, Gpus, Limit, Reason, ReasonCode

ROUNDS = 6
UNCOUNTED = (  # reasons that do not depend on how many GPUs a job may use in the last round
    ReasonCode.PACKED,
    ReasonCode.RESERVED,
    ReasonCode.QUOTA,
    ReasonCode.TRANSIENT,
    ReasonCode.PROMISED,
    ReasonCode.PROMISE_BROKEN,
)
BESIDE = "do not fit on the free GPUs beside those of other jobs"


def fitted(view: ClusterView, chosen: Callable[[ClusterView], Decision]) -> Decision:
    """Return the decision of `chosen` for the view, in which all workers fit on their servers."""
    if not view.needs or not any(server.capacity for server in view.servers):
        return chosen(view)
    room = Room(view)
    away: dict[int, Gpus] = {row: gpus for row, need in view.needs.items() if (gpus := room.closed(need))}
    for last in range(ROUNDS - 1, -1, -1):
        decision = chosen(view.confined(away) if away else view)
        over = room.over(decision.placements)
        if not over or not last:
            break
        away = {row: away.get(row, 0) | over.get(row, 0) for row in sorted({*away, *over})}
        away |= {row: away.get(row, 0) | gpus for row, gpus in room.spread(decision.placements, over, away).items()}
    return _with_reasons(view, room, decision if not over else _cut(view, decision, over), decision, away)


class Room:
    """The cores and the memory of a view's servers."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._servers: list[tuple[str, Gpus, Capacity]] = [
            (server.server, mask, server.capacity)
            for server, mask in zip(view.servers, _masks(view), strict=True)
            if server.capacity is not None
        ]

    def closed(self, need: Need) -> Gpus:
        """Return the GPUs of the servers that cannot have even one worker of a job."""
        return union(mask for _, mask, capacity in self._servers if not capacity.takes(need))

    def over(self, placements: Mapping[int, Gpus]) -> dict[int, Gpus]:
        """Return, by row, the GPUs that jobs may not have, since a server has too little for all workers placed there."""
        found: dict[int, Gpus] = {}
        for _, mask, capacity in self._servers:
            here = {row: gpus & mask for row in self._view.needs if (gpus := placements.get(row, 0)) & mask}
            if not capacity.left.lacks(self._taken(here)):
                continue
            for row, kept in self._kept(here, placements, capacity).items():
                if kept != here[row]:
                    found[row] = found.get(row, 0) | mask & ~kept
        return found

    def spread(
        self, placements: Mapping[int, Gpus], over: Mapping[int, Gpus], away: Mapping[int, Gpus]
    ) -> dict[int, Gpus]:
        """Return, by row, the GPUs to forbid to jobs that begin on a server with too little: all servers but one.

        A job that fits is confined to this server, and each other one to a server with room for it.

        `over`: the GPUs that jobs lose there; `away`: those that they may not have.
        """
        if len(self._servers) < len(self._view.servers):
            return {}  # without counted servers there is room for all jobs
        everything, present, needs = (
            union(mask for _, mask, _ in self._servers),
            self._view.placements,
            self._view.needs,
        )
        kept = {row: gpus & ~over.get(row, 0) for row, gpus in placements.items()}
        used, lost = union(kept.values()), union(over.values())
        left = [
            capacity.left - self._taken({row: kept[row] & mask for row in needs if kept.get(row, 0) & mask})
            for _, mask, capacity in self._servers
        ]
        free = [(mask & ~used).bit_count() for _, mask, _ in self._servers]
        found: dict[int, Gpus] = {}
        for row in needs:
            homes = [mask for _, mask, _ in self._servers if placements.get(row, 0) & mask]
            if row not in over and len(homes) == 1 and homes[0] & lost and not present.get(row, 0):
                found[row] = everything & ~homes[0]
        # Requests that fit on no server. As room only shrinks, equal requests fit on none either.
        hopeless: set[tuple[Limit, int, Gpus]] = set()
        for row in sorted(over, key=self._rank):
            share, limit, not_on = placements[row].bit_count(), self._view.limit(row), away.get(row, 0)
            asked = needs[row].of_gpus(share)
            if kept[row] or present.get(row, 0) or limit is None or (limit, share, not_on) in hopeless:
                continue
            for at in sorted(range(len(free)), key=free.__getitem__):
                may = self._servers[at][1] & ~used & ~not_on
                if free[at] < share or left[at].lacks(asked):
                    continue
                if any((option & may).bit_count() >= share for option in limit.options):
                    found[row] = everything & ~self._servers[at][1]
                    free[at] -= share
                    left[at] = left[at] - asked
                    break
            else:
                hopeless.add((limit, share, not_on))
        return found

    def _rank(self, row: int) -> tuple[bool, int, int]:
        """Return the order in which servers serve jobs: promised ones, then by priority, then by submission."""
        jobs = self._view.jobs
        promised = not jobs.soft[row] and bool(np.isfinite(jobs.deadline_s[row]))
        return not promised, -int(jobs.priority[row]), row

    def _kept(self, here: Mapping[int, Gpus], placements: Mapping[int, Gpus], capacity: Capacity) -> dict[int, Gpus]:
        """Return the GPUs on one server that its jobs keep, by row."""
        jobs, present = self._view.jobs, self._view.placements
        manual = self._view.manual_shares

        def first(row: int) -> tuple[bool, int, bool, int]:
            last, priority, _ = self._rank(row)
            return last, priority, not present.get(row, 0) & here[row], row

        order, count = sorted(here, key=first), dict.fromkeys(here, 0)
        left = capacity
        for whole in (False, True):
            for row in order:
                need, has = self._view.needs[row], here[row].bit_count()
                elsewhere = placements[row].bit_count() - has
                least = manual.get(row, int(jobs.min_gpus[row])) - elsewhere
                wanted = has if whole else max(0, min(has, least))
                each = self._view.per_server(row)
                taken = need.of_gpus(count[row])
                may = min(wanted, left.less(taken * -1).most(need, wanted))
                if may > count[row] and (not each or may >= each):
                    left = left.less(need.of_gpus(may) - taken)
                    count[row] = may
        return {row: some(count[row], here[row] & present.get(row, 0), here[row]) for row in order}

    def _taken(self, here: Mapping[int, Gpus]) -> Amounts:
        needs = self._view.needs
        return sum((needs[row].of_gpus(gpus.bit_count()) for row, gpus in here.items()), Amounts())

    def allows(
        self, row: int, before: Gpus, after: Gpus, held: Mapping[int, Gpus], targets: Mapping[int, Gpus]
    ) -> bool:
        """Return whether the servers have room for a job's new GPUs beside all processes that are there or are ordered.

        `held`: by row, the GPUs of those processes.
        """
        needs = self._view.needs
        if row not in needs:
            return True
        for _, mask, capacity in self._servers:
            if not after & ~before & mask:
                continue
            both = {each: (held.get(each, 0) | targets.get(each, 0)) & mask for each in needs if each != row}
            both[row] = (held.get(row, 0) | before | after) & mask
            if capacity.left.lacks(self._taken(both)):
                return False
        return True

    def waits(self, placements: Mapping[int, Gpus], row: int) -> Reason | None:
        """Return why a job has no further worker, where cores or memory are the reason."""
        need, used = self._view.needs[row], union(placements.values())
        best: tuple[int, str, Amounts, tuple[str, ...]] | None = None
        for name, mask, capacity in self._servers:
            here = {each: gpus & mask for each in self._view.needs if (gpus := placements.get(each, 0)) & mask}
            left = capacity.left - self._taken(here)
            lacking = left.lacks(need.each) or capacity.lacks(need)
            if not mask & ~used or capacity.refuses(need):
                continue
            if not lacking:
                return None
            amount = left.memory_bytes if "cores" not in lacking else left.millicores
            if best is None or amount > best[0]:
                best = amount, name, left, lacking
        if best is None:
            return self._no_container(need, used)
        _, name, left, lacking = best
        asked = Amounts(left.millicores if "cores" in lacking else 0, left.memory_bytes if "memory" in lacking else 0)
        what = " and ".join(lacking)
        return Reason(
            ReasonCode.RESOURCES,
            f"waits for {what}: each worker asks for {need}, and of the servers with a free GPU {name} has most left, "
            f"{asked if asked else f'no {what}'}",
        )

    def _no_container(self, need: Need, used: Gpus) -> Reason | None:
        """Return the reason of a job whose workers need containers, where the free GPUs are on servers without them."""
        found = [
            (name, capacity.no_containers)
            for name, mask, capacity in self._servers
            if mask & ~used and capacity.no_containers
        ]
        if not need.container or not found:
            return None
        name, why = found[0]
        others = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return Reason(
            ReasonCode.RESOURCES,
            f"waits for a server that can run its container: the free GPUs are on {name}{others}, which cannot: {why}",
        )


def _cut(view: ClusterView, decision: Decision, over: Mapping[int, Gpus]) -> Decision:
    """Return the decision without the GPUs `over`; a job with less than its minimum left gets none."""
    placements, shares = dict(decision.placements), decision.shares.copy()
    for row, gpus in over.items():
        left = placements[row] & ~gpus
        if left.bit_count() < int(view.jobs.min_gpus[row]):
            left = 0
        placements[row], shares[row] = left, left.bit_count()
    return replace(decision, shares=shares, placements={row: gpus for row, gpus in placements.items() if gpus})


def _with_reasons(
    view: ClusterView, room: Room, decision: Decision, before: Decision, away: Mapping[int, Gpus]
) -> Decision:
    """Return the decision with cores and memory among its reasons."""

    def every(row: int) -> tuple[Reason, ...]:
        wants = int(view.jobs.max_gpus[row]) > decision.shares[row]
        by_hand = row in view.manual_shares
        if row not in view.needs or by_hand or not wants or (row not in away and decision is before):
            return decision.every(row)
        if (reason := room.waits(decision.placements, row)) is not None:
            return (reason,)  # other reasons would only follow from the GPUs forbidden to the job
        others = tuple(each for each in decision.every(row) if each.code in UNCOUNTED)
        return others or (Reason(ReasonCode.RESOURCES, f"its workers, {view.needs[row]} each, {BESIDE}"),)

    def why(row: int) -> Reason | None:
        return next(iter(every(row)), None) if row in view.needs else decision.why(row)

    def steps(row: int) -> tuple[Step, ...]:
        cut = (Step(Stage.RESOURCES, int(decision.shares[row])),) if decision.shares[row] < before.shares[row] else ()
        return (*before.steps(row), *cut)

    return replace(decision, why=why, every=every, steps=steps)


def _masks(view: ClusterView) -> list[Gpus]:
    return list(layout_of(tuple([len(server.gpus) for server in view.servers])).masks)
