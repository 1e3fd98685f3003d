"""view -> shares that precede the policy -> policy -> quotas -> promises -> regulation (packing) -> placement.

Each stage is pure, and the same for one GPU type and for many (`sharing`).

All of this is repeated where a server has not the cores or the memory for the workers placed there (`host_capacity`).

If jobs have deadlines, their promises precede the policy (`deadline_guard`), as manual shares do. The stage "promises"
gives promised jobs the GPUs that no other job can use.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np

from .arrays import Ints
from .deadline_guard import Deadlines, Kept, foresee, has_any, next_s
from .decision import Decision as Decision
from .decision import Stage
from .host_capacity import fitted
from .packing import pack
from .placement import parts
from .placement.fewest_servers import Placements, layout_of
from .placement.registry import FEWEST_SERVERS, Placement
from .policies import Policy
from .priorities import by_priority
from .quotas.dividing import Tenancy, by_quota, not_raised
from .quotas.pinned import bounded, told, too_many
from .reasons import Reasons
from .sets import union
from .sharing import Sharing
from .view import ClusterView, Gpus, Schedules


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

    `packing`: shares are regulated (AFS 4.4), except manual ones. `first`: by row, the GPU of the job's first worker.

    `deadlines`: the terms on which deadlines are promised; None: they are ignored, or the policy handles them itself.
    `tenancy`: owners of the jobs, and their guarantees; None: there are no quotas.
    """

    def chosen(seen: ClusterView, without: frozenset[int] = frozenset()) -> Decision:
        division = divide(seen, policy, rng, packing, deadlines, tenancy, without)
        return division.placed(parts.place(seen, division.sharing, placement, first, division.sharing.stay))

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
    """All shares, by row of the view.

    `stages`: the shares after each stage. `review_s`, `kept`: as in `Decision`. `rows`, `schedules`: as in `Shares`.
    """

    view: ClusterView
    sharing: Sharing
    stages: list[tuple[Stage, Ints]]
    review_s: float
    kept: Kept | None
    rows: Ints | None
    schedules: Schedules | None

    @property
    def shares(self) -> Ints:
        return self.stages[-1][1]

    def placed(self, placements: Placements) -> Decision:
        """Return the decision with these placements."""
        why = Reasons(self.view, self.sharing, self.kept, self.stages, placements)
        wanted = next(shares for stage, shares in reversed(self.stages) if stage is not Stage.PACKING)
        return Decision(self.shares, placements, why, self.review_s, wanted, self.kept, why.every, why.steps)


def divide(
    view: ClusterView,
    policy: Policy,
    rng: random.Random,
    packing: bool,
    deadlines: Deadlines | None = None,
    tenancy: Tenancy | None = None,
    without: Collection[int] = frozenset(),
) -> Division:
    """Return how many GPUs each job gets. As `decide`; `without`: rows that get none."""
    policy = by_priority(policy, view.jobs)
    foreseen = foresee(view, deadlines) if deadlines is not None and has_any(view, deadlines) else None
    sharing = Sharing(view, policy, rng, without, foreseen.needs(view) if foreseen is not None else None)
    sharing.share_out()
    schedules = sharing.schedules if foreseen is None else foreseen.schedules
    stages = [(Stage.POLICY, sharing.given)]
    if tenancy is not None:
        sharing = by_quota(sharing, view.jobs, tenancy)
        stages.append((Stage.QUOTAS, sharing.given))
    if foreseen is not None:
        most = np.minimum(view.jobs.max_gpus, view.jobs.curves.most)
        sharing.grow_promised(most if tenancy is None else not_raised(tenancy, sharing.given, most))
        stages.append((Stage.PROMISES, sharing.given))
    rows = sharing.having
    if packing:
        _pack(view, sharing, tenancy)
        stages.append((Stage.PACKING, sharing.given))
    review_s = sharing.review_s if foreseen is None else min(sharing.review_s, next_s(foreseen, view.now))
    kept = None if foreseen is None else Kept(**vars(foreseen), shares=sharing.given)
    return Division(view, sharing, stages, review_s, kept, rows, schedules)


def _pack(view: ClusterView, sharing: Sharing, tenancy: Tenancy | None) -> None:
    """Pack the shares of the jobs in each part separately (AFS 4.4), except manual shares, the head of the queue, and
    jobs with seats."""
    taken, needs = union(sharing.seats.values()), sharing.needs
    fixed = [*view.manual_shares, *([view.reservation.row] if view.reservation is not None else [])]
    for number, mask in enumerate(sharing.parts):
        rows = sharing.within(number)
        rows = rows[~np.isin(rows, fixed)] if fixed else rows
        if not len(rows):
            continue
        left, masks = mask & ~taken, layout_of(tuple([len(server.gpus) for server in view.servers])).masks
        given, least, most = sharing.given[rows], view.jobs.min_gpus[rows], view.jobs.max_gpus[rows]
        if view.limit_of is not None:
            most = np.minimum(most, sharing.caps[rows])
        if needs is not None:  # promised jobs keep the GPUs that they need
            for at in np.flatnonzero(np.isin(rows, list(needs.homes))).tolist():
                row = int(rows[at])
                least[at] = max(int(least[at]), needs.least.get(row, 0))
                most[at] = max(int(given[at] if row in needs.stay else most[at]), int(least[at]))
        if tenancy is not None:  # rounding up must not exceed a limit
            most = not_raised(tenancy.cut(rows), given, most)
        sharing.set_within(number, rows, pack(given, [(server & left).bit_count() for server in masks], least, most))
