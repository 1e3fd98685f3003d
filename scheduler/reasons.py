"""Reasons why jobs have fewer GPUs than they could use. Pure; computed only for the few jobs that are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec

from ..protocol.texts import gpu_count
from . import reservation, transient
from .arrays import Ints
from .deadline_guard import Kept
from .decision import (
    ASKS,
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
from .placement.fewest_servers import Placements, layout_of
from .policies.base import waits_for
from .sets import union
from .sharing import Sharing
from .shortage import Usable, lacking
from .view import ClusterView, Gpus, Limit, Reason, ReasonCode

TOLD_KINDS = 3  # most kinds of free, unsuitable GPUs that a reason lists


class Reasons(msgspec.Struct, frozen=True, dict=True):
    """Reasons of a decision. `stages`: the shares after each stage, by row; the last ones are those of the decision."""

    view: ClusterView
    sharing: Sharing
    kept: Kept | None
    stages: Sequence[tuple[Stage, Ints]]
    placements: Placements

    def __call__(self, row: int) -> Reason | None:
        return next(self._each(row), None)

    def every(self, row: int) -> tuple[Reason, ...]:
        """Return all reasons."""
        return tuple(self._each(row))

    def steps(self, row: int) -> tuple[Step, ...]:
        """Return the job's share after each stage."""
        if row in self.view.manual_shares:
            return (Step(Stage.BY_HAND, int(self._shares[row])),)
        return tuple(Step(stage, int(shares[row])) for stage, shares in self.stages)

    def _each(self, row: int) -> Iterator[Reason]:
        return (reason for reason in self._some(row) if reason is not None)

    def _some(self, row: int) -> Iterator[Reason | None]:
        view, kept, limit, share = self.view, self.kept, self.view.limit(row), int(self._shares[row])
        if row in view.manual_shares:
            yield too_little_for(view.manual_shares[row], share, view.total_gpus)
            return
        least = int(view.jobs.min_gpus[row])
        if limit is None and least > self._left_by_hand:
            yield self._too_large(least)
            return
        if kept is not None and self._behind_promises(row):
            yield gives_way(view, kept)
        if kept is not None and not share and (later := starts_later(view, kept, row)) is not None:
            yield later
            return
        after = {stage: int(shares[row]) for stage, shares in self.stages}
        if share < (wanted := after.get(Stage.PROMISES, after.get(Stage.QUOTAS, after[Stage.POLICY]))):
            yield packed(wanted, share)
        yield reservation.told(view, row, share)
        yield transient.told(view, row, share)
        if after.get(Stage.QUOTAS, after[Stage.POLICY]) < after[Stage.POLICY]:
            yield gives_way_to_quotas()
        reason = None
        if limit is not None and not share:
            reason = _limited(view, limit, least, self._used, self.sharing.most_of(limit))
        yield beside_by_hand(
            view, row, share, lambda: self._by_hand, reason or self._of_policy(row, least, share, limit)
        )

    def _of_policy(self, row: int, least: int, share: int, limit: Limit | None) -> Reason | None:
        """Return the policy's reason, with the numbers of all GPUs that the job may use."""
        view, answer = self.view, self.sharing.told(row)
        if answer is None:  # not asked: stages before the policy left too little for the job
            reason = waits_for(least, 0, view.total_gpus) if not share else None
        elif share and not answer[0].gpus[answer[1]]:  # the policy gave nothing, but another stage gave GPUs
            reason = None
        else:
            reason = answer[0].why(answer[1])
        if reason is None or reason.lack is None:
            return reason
        wanted, options = reason.lack.wanted, limit.options if limit is not None else (self._everything,)
        size = max([one.bit_count() for one in options], default=0)
        if wanted > size:
            if limit is None:
                return self._too_large(wanted, asks(view, row, wanted))
            text = f"{asks(view, row, wanted)} {wanted} {limit.demand.what}, there are {size} that it may use"
            return Reason(ReasonCode.CLUSTER_TOO_SMALL, text)
        able = [one for one in options if one.bit_count() >= wanted]
        option = max(able, key=lambda one: (one & ~self._used).bit_count())
        given = {other: (gpus & option).bit_count() for other, gpus in self.placements.items() if gpus & option}
        held = (union(view.placements.values()) & option).bit_count()
        return lacking(view, row, reason.lack, Usable(option.bit_count(), given, held))

    def _behind_promises(self, row: int) -> bool:
        """Return whether the job would have more GPUs if others needed none for their promises."""
        needs = self.sharing.needs
        if needs is None or row in needs.homes:
            return False
        limit = self.view.limit(row)
        able = union(limit.options) if limit is not None else self._everything
        return not able & ~self._used and any(self.placements.get(other, 0) & able for other in needs.least)

    def _too_large(self, least: int, verb: str = ASKS) -> Reason:
        view, total, gpus = self.view, self.view.total_gpus, self._left_by_hand
        if least > total:
            left = total + sum(len(server.gpus) for server in view.absent)
            known = sum(len(server.gpus) for server in view.known)
            excluded = [(one.use, sum(len(server.gpus) for server in one.servers)) for one in view.excluded]
            return too_few(view, gpu_count(least), total, left, known, least, verb, excluded)
        text = f"{verb} {gpu_count(least)}, {gpus} of {total} are left: {self._by_hand}"
        return Reason(ReasonCode.CLUSTER_TOO_SMALL, text)

    @property
    def _shares(self) -> Ints:
        return self.stages[-1][1]

    @property
    def _everything(self) -> Gpus:
        return (1 << self.view.total_gpus) - 1

    @cached_property
    def _used(self) -> Gpus:
        return union(self.placements.values())

    @cached_property
    def _left_by_hand(self) -> int:
        return self.view.total_gpus - sum(int(self._shares[row]) for row in self.view.manual_shares)

    @cached_property
    def _by_hand(self) -> str:
        return told_by_hand(self.view, self._shares if self.view.manual_shares else None)


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
            sum(
                (server & option & ~used).bit_count() >= each
                for server in layout_of(tuple([len(server.gpus) for server in view.servers])).masks
            )
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
    for server, mask in zip(
        view.servers, layout_of(tuple([len(server.gpus) for server in view.servers])).masks, strict=True
    ):
        if idle & mask:
            begin = (mask & -mask).bit_length() - 1
            for at, sort in enumerate(server.sorts):
                if idle >> begin + at & 1:
                    count[sort.name] = count.get(sort.name, 0) + 1
    listed = sorted(count, key=lambda name: (-count[name], name))[:TOLD_KINDS]
    if not listed:
        return ""
    found = ", ".join(f"{count[name]} {name or 'GPUs'}" for name in listed)
    return f"; {found} {'is' if sum(count[name] for name in listed) == 1 else 'are'} free"


def _bound(demand: Demand) -> str:
    if not demand.began_on:
        return ""
    return f"; it began on {demand.began_on}, and stays on that type"
