"""view -> manual shares -> policy -> quotas -> promises -> regulation (packing) -> placement. Each stage is pure.

All of this is repeated where a server has not the cores or the memory for the workers placed there (`host_capacity`).

Where jobs have deadlines, the policy divides the GPUs that their promises leave (`deadline_guard`). The stage "promises"
returns GPUs that quotas have taken from promised jobs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial

import msgspec
import numpy as np

from ..protocol.texts import gpu_count
from . import deadline_guard
from .arrays import Ints
from .constrained import decide_constrained
from .deadline_guard import Deadlines, Kept, foresee, has_any, keep, next_s
from .deadlines.pools import limited
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
from .decision import Decision as Decision
from .host_capacity import fitted
from .manual import shares_by_hand
from .packing import pack
from .placement.registry import FEWEST_SERVERS, Placement
from .policies import Policy
from .policies.base import Shares, no_shares
from .priorities import by_priority
from .quotas.dividing import Tenancy, divide_by_quota, not_raised
from .quotas.pinned import bounded, told, too_many
from .shortage import Usable, lacking
from .view import ClusterView, Gpus, JobTable, Reason, ReasonCode, Schedules


def decide(
    view: ClusterView,
    policy: Policy,
    rng: random.Random,
    packing: bool,
    first: Mapping[int, Gpus] | None = None,
    placement: Placement = FEWEST_SERVERS,
    deadlines: Deadlines | None = None,
    tenancy: Tenancy | None = None,
) -> Decision:
    """Return all shares and placements.

    `packing`: shares are regulated (AFS 4.4), except manual ones. `first`: as for `place`.

    `deadlines`: the terms on which deadlines are promised; None: they are ignored, or the policy handles them itself.
    `tenancy`: owners of the jobs, and their guarantees; None: there are no quotas. Where not every job may use every
    GPU, `constrained` does the same.
    """
    if deadlines is not None and not has_any(view, deadlines):
        deadlines = None
    if deadlines is not None:
        view = limited(view)

    def chosen(seen: ClusterView, without: frozenset[int] = frozenset()) -> Decision:
        if seen.limit_of is not None:
            return decide_constrained(seen, policy, rng, packing, first, placement, tenancy, without, deadlines)
        divided = divide(seen, policy, rng, packing, deadlines, tenancy, without)
        placed = placement.place(seen.servers, seen.placements, divided.shares, first, divided.stay)
        why = divided.why
        return Decision(
            divided.shares, placed, why, divided.review_s, divided.wanted, divided.kept, why.every, why.steps
        )

    if tenancy is None or not tenancy.stays:
        return fitted(view, chosen)
    may = bounded(view, tenancy)
    decision = fitted(may.view, partial(chosen, without=may.without))
    again = too_many(may.view, tenancy, {row: int(decision.shares[row]) for row in tenancy.stays})
    if again is not None:
        may, decision = again, fitted(again.view, partial(chosen, without=again.without))
    not_begun = partial(told, tenancy, without=may.without)
    return replace(
        decision,
        why=lambda row: not_begun(row) or decision.why(row),
        every=lambda row: (reason,) if (reason := not_begun(row)) is not None else decision.every(row),
    )


class Division(msgspec.Struct, frozen=True):
    """All shares, by row of the view; fields as in `Decision`. `rows`, `stay`, `schedules`: as in `Shares`."""

    shares: Ints
    why: Reasons
    review_s: float
    wanted: Ints
    rows: Ints | None = None
    kept: Kept | None = None  # the handling of deadlines, where there are any
    stay: Collection[int] = ()
    schedules: Schedules | None = None


def divide(
    view: ClusterView,
    policy: Policy,
    rng: random.Random,
    packing: bool,
    deadlines: Deadlines | None = None,
    tenancy: Tenancy | None = None,
    without: Collection[int] = frozenset(),
) -> Division:
    """Return how many GPUs each job gets, where every job may use every GPU.

    As `decide`; `without`: rows that get none.
    """
    by_hand = shares_by_hand(view) if view.manual_shares else None  # None: the policy decides about all
    gpus = view.total_gpus if by_hand is None else view.total_gpus - int(by_hand.sum())
    rows = _policed(view, gpus, without)
    jobs = view.jobs if rows is None else view.jobs.cut(rows)
    if not policy.needs_lengths:
        jobs = jobs.without_lengths()
    policy = by_priority(policy, view.jobs)
    foreseen = foresee(view, deadlines) if deadlines is not None and has_any(view, deadlines) else None
    needs = None if foreseen is None else foreseen.needs(len(view.jobs))
    if needs is not None and rows is not None:
        needs = needs.cut(rows)
    ask = _asking(policy, jobs, view.now, rng, needs)
    given = ask(None, gpus)
    schedules = given.schedules if foreseen is None else foreseen.schedules
    by_policy, stay = given.gpus, given.stay if needs is None else np.flatnonzero(needs.exact).tolist()
    lowered: frozenset[int] = frozenset()
    if tenancy is not None:
        if by_hand is not None:
            tenancy = tenancy.with_held({row: int(by_hand[row]) for row in view.manual_shares})
        given, lowered = _by_quota(ask, jobs, gpus, given, tenancy if rows is None else tenancy.cut(rows))
    by_quota = given.gpus
    wanted = shares = _beside(by_hand, rows, by_quota, view.jobs)
    kept = None if foreseen is None else keep(view, shares, foreseen)
    if kept is not None:
        wanted = shares = kept.shares
        theirs = shares if rows is None else shares[rows]
        given = Shares(theirs, given.why, min(given.review_s, next_s(kept, view.now)))
    if packing:
        least, most = jobs.min_gpus, jobs.max_gpus
        if needs is not None:  # promised jobs keep the GPUs that they need
            least = np.maximum(least, needs.least)
            most = np.where(needs.exact, np.maximum(given.gpus, least), most)
        if tenancy is not None:  # rounding up must not exceed a limit
            most = not_raised(tenancy if rows is None else tenancy.cut(rows), given.gpus, most)
        regulated = pack(given.gpus, [len(server.gpus) for server in view.servers], least, most)
        shares = _beside(by_hand, rows, regulated, view.jobs)
    stages = [(Stage.POLICY, by_policy)]
    if tenancy is not None:
        stages.append((Stage.QUOTAS, by_quota))
    if kept is not None:
        stages.append((Stage.PROMISES, given.gpus))
    if packing:
        stages.append((Stage.PACKING, shares if rows is None else shares[rows]))
    why = Reasons(view, gpus, by_hand, rows, given, wanted, shares, kept, lowered, tuple(stages))
    if rows is not None:
        stay = rows[list(stay)].tolist()
    return Division(shares, why, given.review_s, wanted, given.rows if rows is None else None, kept, stay, schedules)


Asking = Callable[[Ints | None, int], Shares]  # returns the shares of these rows (None: all), out of so many GPUs


def _asking(
    policy: Policy, jobs: JobTable, now: float, rng: random.Random, needs: deadline_guard.Needs | None
) -> Asking:
    """Return the policy, behind the needs of promises. `needs`: by row of the jobs; None: there are no promises."""

    def of_policy(some: JobTable, gpus: int) -> Shares:
        return policy.shares(some, gpus, now, rng)

    def ask(rows: Ints | None, gpus: int) -> Shares:
        some = jobs if rows is None else jobs.cut(rows)
        if needs is None:
            return of_policy(some, gpus)
        return deadline_guard.divide(some, needs if rows is None else needs.cut(rows), gpus, of_policy)

    return ask


def _by_quota(
    asking: Asking, jobs: JobTable, gpus: int, given: Shares, tenancy: Tenancy
) -> tuple[Shares, frozenset[int]]:
    """Return the policy's shares as quotas allow them, and the rows with fewer GPUs because of quotas."""
    reviews = [given.review_s]

    def ask(rows: Ints, budget: int) -> Ints:
        found = np.zeros(len(rows), dtype=np.int64)
        able = jobs.min_gpus[rows] <= budget
        if able.any():
            told = asking(rows[able], budget)
            reviews.append(told.review_s)
            found[able] = told.gpus
        return found

    shares = divide_by_quota(jobs, given.gpus, gpus, tenancy, ask)
    if shares is given.gpus:
        return given, frozenset()
    return Shares(shares, given.why, min(reviews)), frozenset(np.flatnonzero(shares < given.gpus).tolist())


class Reasons(msgspec.Struct, frozen=True, dict=True):
    """Why jobs have less than they could use, computed on demand since most decisions are never asked.

    `gpus`: how many GPUs the policy divided. `rows`: the rows that it saw; None: all.
    """

    view: ClusterView
    gpus: int
    by_hand: Ints | None
    rows: Ints | None
    given: Shares
    wanted: Ints
    shares: Ints
    kept: Kept | None
    lowered: frozenset[int]  # rows of the policy's table that got less than it gave, because of others' quotas
    stages: tuple[tuple[Stage, Ints], ...]  # the shares after each stage, by row of the policy's table

    def __call__(self, row: int) -> Reason | None:
        return next(self._each(row), None)

    def every(self, row: int) -> tuple[Reason, ...]:
        """Return all reasons."""
        return tuple(self._each(row))

    def steps(self, row: int) -> tuple[Step, ...]:
        """Return the job's share after each stage."""
        if row in self.view.manual_shares:
            return (Step(Stage.BY_HAND, int(self.shares[row])),)
        at = row if self.rows is None else self._place.get(row)
        if at is None:  # its minimum is beyond the GPUs that the policy may give
            return (Step(Stage.POLICY, 0),)
        return tuple(Step(stage, int(shares[at])) for stage, shares in self.stages)

    def _each(self, row: int) -> Iterator[Reason]:
        view, shares = self.view, self.shares
        if row in view.manual_shares:
            if (reason := too_little_for(view.manual_shares[row], int(shares[row]), view.total_gpus)) is not None:
                yield reason
            return
        if (least := int(view.jobs.min_gpus[row])) > self.gpus:
            yield _too_large(view, least, self.gpus, self._held())
            return
        if self.kept is not None and (row in self.kept.lowered or self._behind_promises(row)):
            yield gives_way(view, self.kept)
        if self.kept is not None and not shares[row] and (later := starts_later(view, self.kept, row)) is not None:
            yield later
            return
        if shares[row] < self.wanted[row]:
            yield packed(int(self.wanted[row]), int(shares[row]))
        at = row if self.rows is None else self._place[row]
        if at in self.lowered:
            yield gives_way_to_quotas()
        raised = bool(shares[row]) and not self.stages[0][1][at]  # the policy gave nothing, and a later stage some
        by_policy = None if raised else self._counted(row, self.given.why(at))
        reason = beside_by_hand(view, row, int(shares[row]), self._held, by_policy)
        if reason is not None:
            yield reason

    def _counted(self, row: int, reason: Reason | None) -> Reason | None:
        """Return the policy's reason, with the numbers of the whole cluster."""
        if reason is None or reason.lack is None:
            return reason
        if reason.lack.wanted > self.view.total_gpus:
            return _too_large(
                self.view, reason.lack.wanted, self.gpus, self._held(), asks(self.view, row, reason.lack.wanted)
            )
        return lacking(self.view, row, reason.lack, self._usable)

    @cached_property
    def _usable(self) -> Usable:
        given = {row: int(self.shares[row]) for row in np.flatnonzero(self.shares).tolist()}
        held = sum(gpus.bit_count() for gpus in self.view.placements.values())
        return Usable(self.view.total_gpus, given, held)

    def _behind_promises(self, row: int) -> bool:
        """Return whether the job would have more GPUs if others needed none for their promises."""
        all_in_use = int(self.shares.sum()) >= self.view.total_gpus
        return all_in_use and self._least[row] < 0 and bool((self._least > 0).any())

    @cached_property
    def _least(self) -> Ints:
        assert self.kept is not None
        return self.kept.needs(len(self.view.jobs)).least

    def _held(self) -> str:
        return self._told_by_hand

    @cached_property
    def _told_by_hand(self) -> str:
        return told_by_hand(self.view, self.by_hand)

    @cached_property
    def _place(self) -> dict[int, int]:
        """Row of the policy's table by row of the view."""
        return {row: at for at, row in enumerate(self.rows.tolist())} if self.rows is not None else {}


def _beside(by_hand: Ints | None, rows: Ints | None, given: Ints, jobs: JobTable) -> Ints:
    """Return all shares: `given` for these rows, manual ones or 0 for the others. `rows` None: there are no others."""
    if rows is None:
        return given
    shares = no_shares(jobs) if by_hand is None else by_hand.copy()
    shares[rows] = given
    return shares


def _policed(view: ClusterView, gpus: int, without: Collection[int]) -> Ints | None:
    """Return the rows for which the policy decides, without those that get no GPUs; None: all.

    A job with a minimum beyond the GPUs that the policy may give is left out: it could only get nothing, and curves of
    throughput do not reach that far.
    """
    others = [*view.manual_shares, *without]
    if not others and view.jobs.most_needed <= gpus:
        return None
    policed = view.jobs.min_gpus <= gpus
    if others:
        policed[others] = False
    return None if policed.all() else np.flatnonzero(policed)


def _too_large(view: ClusterView, least: int, gpus: int, held: str, verb: str = ASKS) -> Reason:
    total = view.total_gpus
    if least > total:
        left = total + sum(len(server.gpus) for server in view.absent)
        known = sum(len(server.gpus) for server in view.known)
        excluded = [(one.use, sum(len(server.gpus) for server in one.servers)) for one in view.excluded]
        return too_few(view, gpu_count(least), total, left, known, least, verb, excluded)
    return Reason(ReasonCode.CLUSTER_TOO_SMALL, f"{verb} {gpu_count(least)}, {gpus} of {total} are left: {held}")
