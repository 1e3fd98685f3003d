"""view -> manual shares -> policy -> regulation (packing) -> placement. Each stage is a pure function of its arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..protocol.texts import gpu_count
from .decision import Decision as Decision
from .decision import beside_by_hand, packed, told_by_hand, too_few, too_little_for
from .limited import decide_limited
from .packing import pack
from .placement.registry import FEWEST_SERVERS, Placement
from .policies import Policy
from .policies.base import Shares, no_shares
from .view import ClusterView, Gpus, Ints, JobTable, Reason, ReasonCode


def decide(
    view: ClusterView,
    policy: Policy,
    rng: random.Random,
    packing: bool,
    first: Mapping[int, Gpus] | None = None,
    placement: Placement = FEWEST_SERVERS,
) -> Decision:
    """Who gets which GPUs. `packing`: shares are regulated (AFS 4.4), except those set by hand. `first`: as for `place`.

    Where not every job may use every GPU, `limited` does the same.
    """
    if view.limit_of is not None:
        return decide_limited(view, policy, rng, packing, first, placement)
    divided = divide(view, policy, rng, packing)
    placed = placement.place(view.servers, view.placements, divided.shares, first)
    return Decision(divided.shares, placed, divided.why, divided.review_s, divided.wanted)


@dataclass(frozen=True)
class Division:
    """Everybody's share, by row of the view; what it says is said in `Decision`. `rows`: as in `Shares`."""

    shares: Ints
    why: Callable[[int], Reason | None]
    review_s: float
    wanted: Ints
    rows: Ints | None = None


def divide(view: ClusterView, policy: Policy, rng: random.Random, packing: bool) -> Division:
    """How many GPUs each job gets, where every job may use every GPU. Arguments as for `decide`."""
    by_hand = _manual_shares(view) if view.manual_shares else None  # None: the policy decides about all
    gpus = view.total_gpus if by_hand is None else view.total_gpus - int(by_hand.sum())
    rows = _policed(view, gpus)
    jobs = view.jobs if rows is None else view.jobs.cut(rows)
    if not policy.needs_lengths:
        jobs = jobs.without_lengths()
    given = policy.shares(jobs, gpus, view.now, rng)
    wanted = shares = _beside(by_hand, rows, given.gpus, view.jobs)
    if packing:
        regulated = pack(given.gpus, [len(server.gpus) for server in view.servers], jobs.min_gpus, jobs.max_gpus)
        shares = _beside(by_hand, rows, regulated, view.jobs)
    why = _Reasons(view, gpus, by_hand, rows, given, wanted, shares)
    return Division(shares, why, given.review_s, wanted, given.rows if rows is None else None)


@dataclass(frozen=True)
class _Reasons:
    """Why jobs have not got what they could use; most decisions are never asked. `gpus`: so many the policy gave; `rows`: what it
    has seen, None: all."""

    view: ClusterView
    gpus: int
    by_hand: Ints | None
    rows: Ints | None
    given: Shares
    wanted: Ints
    shares: Ints

    def __call__(self, row: int) -> Reason | None:
        view, shares = self.view, self.shares
        if row in view.manual_shares:
            return too_little_for(view.manual_shares[row], int(shares[row]), view.total_gpus)
        if (least := int(view.jobs.min_gpus[row])) > self.gpus:
            return _too_large(view, least, self.gpus, self._held())
        if shares[row] < self.wanted[row]:
            return packed(int(self.wanted[row]), int(shares[row]))
        reason = self.given.why(row if self.rows is None else self._place[row])
        return beside_by_hand(view, row, int(shares[row]), self._held, reason)

    def _held(self) -> str:
        return self._told_by_hand

    @cached_property
    def _told_by_hand(self) -> str:
        return told_by_hand(self.view, self.by_hand)

    @cached_property
    def _place(self) -> dict[int, int]:
        """By row of the view, that of what the policy has seen."""
        return {row: at for at, row in enumerate(self.rows.tolist())} if self.rows is not None else {}


def _manual_shares(view: ClusterView) -> Ints:
    """Shares set by hand come first, in the order of submission, as large as they fit; none below what the job asks for at least,
    unless that itself was set by hand."""
    shares = no_shares(view.jobs)
    free = view.total_gpus
    for row, wanted in sorted(view.manual_shares.items()):
        share, least = min(wanted, free), min(wanted, int(view.jobs.min_gpus[row]))
        shares[row] = share if share >= least else 0
        free -= int(shares[row])
    return shares


def _beside(by_hand: Ints | None, rows: Ints | None, given: Ints, jobs: JobTable) -> Ints:
    """All shares: those of these rows as they are given, the others as set by hand, or 0. None: there are no others."""
    if rows is None:
        return given
    shares = no_shares(jobs) if by_hand is None else by_hand.copy()
    shares[rows] = given
    return shares


def _policed(view: ClusterView, gpus: int) -> Ints | None:
    """The rows whose shares the policy decides; None: all.

    A job whose minimum is beyond the GPUs that the policy may give is none of its business: it could only get nothing, and curves
    of throughput do not reach that far.
    """
    if not view.manual_shares and view.jobs.most_needed <= gpus:
        return None
    policed = view.jobs.min_gpus <= gpus
    if view.manual_shares:
        policed[list(view.manual_shares)] = False
    return None if policed.all() else np.flatnonzero(policed)


def _too_large(view: ClusterView, least: int, gpus: int, held: str) -> Reason:
    total = view.total_gpus
    if least > total:
        left = total + sum(len(server.gpus) for server in view.absent)
        return too_few(view, gpu_count(least), total, left, sum(len(server.gpus) for server in view.known), least)
    return Reason(
        ReasonCode.CLUSTER_TOO_SMALL, f"asks for at least {gpu_count(least)}, {gpus} of {total} are left: {held}"
    )
