"""Decisions where not every job may use every GPU: `constrained_shares` divides them, and each job is placed among the GPUs that
it may use.

The GPUs are placed part by part (`constrained_shares`), by the stage that places them all where there are no limits: it treats a
part as a cluster of its own. Jobs that want a fixed number of GPUs on each server have theirs already.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from . import transient
from .arrays import Ints
from .constrained_shares import ConstrainedShares, Needed
from .deadline_guard import Deadlines, Foreseen, Kept, Needs, foresee, next_s
from .decision import (
    Decision,
    Stage,
    Step,
    asks,
    beside_by_hand,
    gives_way,
    gives_way_to_quotas,
    packed,
    starts_later,
    told_by_hand,
    too_few,
    too_little_for,
)
from .kinds import Demand, most_gpus, stock_of
from .packing import pack
from .placement.fewest_servers import layout_of
from .placement.registry import Placement
from .policies import Policy
from .priorities import by_priority
from .quotas.constrained import share_by_quota
from .quotas.dividing import Tenancy, not_raised
from .reservation import told
from .sets import union
from .shortage import Usable, lacking
from .view import ClusterView, Gpus, Limit, Reason, ReasonCode, ServerInView

TOLD_KINDS = 3  # other kinds of free GPUs that a reason lists


def decide_constrained(
    view: ClusterView,
    policy: Policy,
    rng: random.Random,
    packing: bool,
    first: Mapping[int, Gpus] | None,
    placement: Placement,
    tenancy: Tenancy | None = None,
    without: Collection[int] = frozenset(),
    deadlines: Deadlines | None = None,
) -> Decision:
    """Decide as `pipeline.decide`, for a view with limits. `without`: rows that get none."""
    policy = by_priority(policy, view.jobs)
    foreseen = None if deadlines is None else foresee(view, deadlines)
    needs = None if foreseen is None else foreseen.needs(len(view.jobs))
    needed = None if foreseen is None or needs is None else _needed(foreseen, needs, (1 << view.total_gpus) - 1)
    stay = needed.stay if needed is not None else frozenset()
    if tenancy is None:
        sharing = ConstrainedShares(view, policy, rng, without, needed)
        sharing.share_out()
        by_policy = sharing.given.copy()
    else:
        sharing, by_policy = share_by_quota(view, policy, rng, tenancy, without, needed)
    by_quota = sharing.given.copy()
    if needed is not None:
        most = np.minimum(view.jobs.max_gpus, view.jobs.curves.most)
        sharing.grow_promised(most if tenancy is None else not_raised(tenancy, sharing.given, most))
    wanted = sharing.given.copy()
    if packing:
        _pack(view, sharing, tenancy, needs)
    shares, placed = sharing.given, dict(sharing.seats)
    taken = union(placed.values())
    for number, mask in enumerate(sharing.parts):
        amounts = {row: own[number] for row, own in sorted(sharing.amounts.items()) if own.get(number)}
        if amounts:
            for row, gpus in _Part(view.servers, mask & ~taken).place(
                placement, view.placements, amounts, first or {}, stay
            ):
                placed[row] = placed.get(row, 0) | gpus
    used = union(placed.values())
    kept = None if foreseen is None else Kept(**vars(foreseen), shares=shares, lowered=frozenset())
    review_s = sharing.review_s if kept is None else min(sharing.review_s, next_s(kept, view.now))

    @cache
    def held() -> str:
        return told_by_hand(view, shares if view.manual_shares else None)

    def counted(limit: Limit, row: int, reason: Reason | None) -> Reason | None:
        if reason is None or reason.lack is None:
            return reason
        wanted, size = reason.lack.wanted, max(one.bit_count() for one in limit.options)
        if wanted > size:
            text = f"{asks(view, row, wanted)} {wanted} {limit.demand.what}, there are {size} that it may use"
            return Reason(ReasonCode.CLUSTER_TOO_SMALL, text)
        able = [one for one in limit.options if one.bit_count() >= wanted]
        option = max(able, key=lambda one: (one & ~used).bit_count())
        given = {other: (gpus & option).bit_count() for other, gpus in placed.items() if gpus & option}
        held_now = (union(view.placements.values()) & option).bit_count()
        return lacking(view, row, reason.lack, Usable(option.bit_count(), given, held_now))

    def each(row: int) -> Iterator[Reason | None]:
        if row in view.manual_shares:
            yield too_little_for(view.manual_shares[row], int(shares[row]), view.total_gpus)
            return
        if shares[row] < wanted[row]:
            yield packed(int(wanted[row]), int(shares[row]))
        yield told(view, row, int(shares[row]))
        yield transient.told(view, row, int(shares[row]))
        if kept is not None and not shares[row] and (later := starts_later(view, kept, row)) is not None:
            yield later
            return
        if by_quota[row] < by_policy[row]:
            yield gives_way_to_quotas()
        if kept is not None and not shares[row] and row not in kept.homes:
            yield gives_way(view, kept)
        limit = view.limit(row)
        assert limit is not None
        reason = (
            _limited(view, limit, int(view.jobs.min_gpus[row]), used, sharing.cap(row)) if not shares[row] else None
        )
        yield beside_by_hand(view, row, int(shares[row]), held, reason or counted(limit, row, sharing.told(row)))

    def every(row: int) -> tuple[Reason, ...]:
        return tuple(reason for reason in each(row) if reason is not None)

    def why(row: int) -> Reason | None:
        return next((reason for reason in each(row) if reason is not None), None)

    def steps(row: int) -> tuple[Step, ...]:
        if row in view.manual_shares:
            return (Step(Stage.BY_HAND, int(shares[row])),)
        stages = [(Stage.POLICY, by_policy)]
        if tenancy is not None:
            stages.append((Stage.QUOTAS, by_quota))
        if kept is not None:
            stages.append((Stage.PROMISES, wanted))
        if packing:
            stages.append((Stage.PACKING, shares))
        return tuple(Step(stage, int(given[row])) for stage, given in stages)

    return Decision(shares, dict(sorted(placed.items())), why, review_s, wanted, kept, every, steps)


def _needed(foreseen: Foreseen, needs: Needs, everything: Gpus) -> Needed:
    """Return what promises need, of the rows in view."""
    rows, pools = np.flatnonzero(needs.least >= 0).tolist(), foreseen.these.pools
    return Needed(
        least={row: int(needs.least[row]) for row in rows if needs.least[row] > 0},
        homes={row: pools[foreseen.homes[row]].gpus & everything for row in rows},
        stay=frozenset(np.flatnonzero(needs.exact).tolist()),
    )


def _pack(view: ClusterView, sharing: ConstrainedShares, tenancy: Tenancy | None, needs: Needs | None) -> None:
    """Pack the shares of the jobs in each part separately (AFS 4.4), except manual shares, the head of the queue, and
    jobs with seats."""
    taken = union(sharing.seats.values())
    fixed = {*view.manual_shares, *([view.reservation.row] if view.reservation is not None else [])}
    for number, mask in enumerate(sharing.parts):
        rows = [r for r, own in sharing.amounts.items() if set(own) == {number} and r not in fixed]
        if not rows:
            continue
        chosen: Ints = np.array(sorted(rows), dtype=np.int64)
        left = mask & ~taken
        sizes = [(server & left).bit_count() for server in _masks(view.servers)]
        least = view.jobs.min_gpus[chosen]
        most = np.minimum(view.jobs.max_gpus[chosen], [sharing.cap(row) for row in chosen.tolist()])
        if needs is not None:  # promised jobs keep the GPUs that they need
            least = np.maximum(least, needs.least[chosen])
            most = np.where(needs.exact[chosen], np.maximum(sharing.given[chosen], least), np.maximum(most, least))
        if tenancy is not None:  # rounding up must not exceed a limit
            most = not_raised(tenancy.cut(chosen), sharing.given[chosen], most)
        given = pack(sharing.given[chosen], sizes, least, most)
        sharing.given[chosen] = given
        for row, share in zip(chosen.tolist(), given.tolist(), strict=True):
            sharing.amounts[row] = {number: share} if share else {}


def _masks(servers: Sequence[ServerInView]) -> Sequence[Gpus]:
    return layout_of(tuple([len(server.gpus) for server in servers])).masks


# A part's GPUs on a server: a set of the view, where the server and the piece begin, and the positions; None: all of
# it.
_Piece = tuple[Gpus, int, int, tuple[int, ...] | None]


class _Part:
    """Some GPUs of a view as a cluster of their own, with their own bits in sets."""

    def __init__(self, servers: Sequence[ServerInView], mask: Gpus) -> None:
        self.servers: list[ServerInView] = []
        pieces: list[_Piece] = []
        there = []
        begin = inner = 0
        for number, server in enumerate(servers):
            size = len(server.gpus)
            here = mask >> begin & ((1 << size) - 1)
            if here:
                kept = None if here.bit_count() == size else tuple(at for at in range(size) if here >> at & 1)
                self.servers.append(server if kept is None else server.only(kept))
                pieces.append((here << begin, begin, inner, kept))
                there.append(number)
                inner += here.bit_count()
            begin += size
        self._at = [piece for piece in pieces for _ in range(piece[0].bit_count())]  # by inner bit
        self._of = dict(zip(there, pieces, strict=True))
        self._server = layout_of(tuple([len(server.gpus) for server in servers])).server  # by bit of the view
        self._mask = mask

    def place(
        self,
        stage: Placement,
        present: Mapping[int, Gpus],
        amounts: Mapping[int, int],
        first: Mapping[int, Gpus],
        stay: Collection[int],
    ) -> Iterator[tuple[int, Gpus]]:
        """Yield the GPUs of each of these jobs, as sets of the view."""
        here = {row: self._inner(gpus) for row, gpus in present.items() if gpus & self._mask}
        leads = {row: self._inner(gpus) for row, gpus in first.items() if gpus & self._mask and row in amounts}
        for row, gpus in stage.place(
            self.servers, here, amounts, leads, [row for row in sorted(stay) if row in amounts]
        ).items():
            yield row, self._outer(gpus)

    def _inner(self, gpus: Gpus) -> Gpus:
        found, gpus = 0, gpus & self._mask
        while gpus:
            here, begin, inner, kept = self._of[self._server[(gpus & -gpus).bit_length() - 1]]
            own = (gpus & here) >> begin
            gpus &= ~here
            found |= (own if kept is None else sum(1 << n for n, at in enumerate(kept) if own >> at & 1)) << inner
        return found

    def _outer(self, gpus: Gpus) -> Gpus:
        found = 0
        while gpus:
            here, begin, inner, kept = self._at[(gpus & -gpus).bit_length() - 1]
            own = gpus >> inner & ((1 << here.bit_count()) - 1)
            gpus &= ~(own << inner)
            found |= (own if kept is None else sum(1 << at for n, at in enumerate(kept) if own >> n & 1)) << begin
        return found


# ----------------------------------------------------------------------------------------------------------------- reasons


def _limited(view: ClusterView, limit: Limit, least: int, used: Gpus, most: int) -> Reason | None:
    """Return why a job waits, where its limit is the reason."""
    demand, what = limit.demand, f"{least} {limit.demand.what}"
    present = [server.stock for server in view.servers]
    if most < least:
        left = most_gpus(demand, [*present, *(server.stock for server in view.absent)])
        if left >= least and not view.absent:  # the other GPUs are held for the head of the queue
            head = view.reservation
            held = f", others are held for {view.jobs.name(head.row)}" if head is not None else ""
            return Reason(ReasonCode.LIMITED, f"waits for {what}: {most} of {left} may be used by it{held}")
        known = most_gpus(demand, [server.stock for server in view.known])
        excluded = [(one.use, sum(stock_of(demand, server.stock) for server in one.servers)) for one in view.excluded]
        reason = too_few(view, what, most, left, known, least, excluded=excluded)
        return Reason(reason.code, reason.text + _bound(demand))
    free = max((option & ~used).bit_count() for option in limit.options)
    if demand.per_server:
        each = demand.per_server
        able = [
            sum((server & option & ~used).bit_count() >= each for server in _masks(view.servers))
            for option in limit.options
        ]
        if max(able) * each >= least:
            return None
        servers = f"{max(able)} server{'s have' if max(able) != 1 else ' has'} {each} free"
        return Reason(
            ReasonCode.LIMITED, f"waits for {what}: {servers}, and it needs {least // each}{_others(view, limit, used)}"
        )
    if free >= least:
        return None
    size = max(option.bit_count() for option in limit.options)
    how = f"all {size} are in use" if not free else f"{free} of {size} {'is' if free == 1 else 'are'} free"
    return Reason(ReasonCode.LIMITED, f"waits for {what}: {how}{_others(view, limit, used)}{_bound(demand)}")


def _others(view: ClusterView, limit: Limit, used: Gpus) -> str:
    """Return which free GPUs the job may not use, in words."""
    idle = ((1 << view.total_gpus) - 1) & ~used & ~union(limit.options)
    count: dict[str, int] = {}
    for server, mask in zip(view.servers, _masks(view.servers), strict=True):
        if idle & mask:
            begin = (mask & -mask).bit_length() - 1
            for at, sort in enumerate(server.sorts):
                if idle >> begin + at & 1:
                    count[sort.name] = count.get(sort.name, 0) + 1
    told = sorted(count, key=lambda name: (-count[name], name))[:TOLD_KINDS]
    if not told:
        return ""
    found = ", ".join(f"{count[name]} {name or 'GPUs'}" for name in told)
    return f"; {found} {'is' if sum(count[name] for name in told) == 1 else 'are'} free"


def _bound(demand: Demand) -> str:
    if not demand.began_on:
        return ""
    return f"; it began on {demand.began_on}, and stays on that type"
