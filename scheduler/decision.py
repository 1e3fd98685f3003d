"""What comes of a decision, and the reasons that do not depend on the policy."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..protocol.texts import gpu_count
from .deadlines.keeping import Kept
from .deadlines.words import duration
from .placement.fewest_servers import Placements
from .view import ClusterView, Ints, Reason, ReasonCode, Use

MOST_TOLD = 3  # jobs that hold GPUs by hand, or servers, in a reason


def _nothing(row: int) -> tuple[()]:
    return ()


class Stage(enum.Enum):
    """What decides about a share, in this order (`pipeline`; the last two in the controller)."""

    BY_HAND = "by-hand"  # in place of the policy and its stages
    POLICY = "policy"
    QUOTAS = "quotas"
    PROMISES = "promises"  # of others, that they end by their deadlines
    PACKING = "packing"
    EXCLUDED = "excluded-gpus"  # it would have had GPUs that take no new work
    AVOIDED = "avoided-servers"  # or such on servers where it cannot work


@dataclass(frozen=True)
class Step:
    """How many GPUs a job had after a stage."""

    stage: Stage
    gpus: int


@dataclass(frozen=True)
class Decision:
    """Everybody's share, who gets which GPUs, and why some get less than they could use; all by row of the view."""

    shares: Ints
    placements: Placements  # of the jobs with a share
    why: Callable[[int], Reason | None]  # asked for rows whose share is below their maximum, or below that set by hand
    review_s: float  # decide again then (Unix time), even if nothing has happened
    wanted: Ints  # what the policy gave, before packing
    kept: Kept | None = None  # what has become of deadlines; None: no job has one, or nobody has looked
    every: Callable[[int], tuple[Reason, ...]] = _nothing  # as `why`: each reason that there is, that of `why` first
    steps: Callable[[int], tuple[Step, ...]] = _nothing  # of any row: its share after each stage that decided about it


def too_little_for(wanted: int, share: int, gpus: int) -> Reason | None:
    """Of a share set by hand."""
    if share == wanted:
        return None
    return Reason(ReasonCode.MANUAL, f"set to {gpu_count(wanted)} by hand, {share} of {gpus} could be had")


ASKS = "asks for at least"
_WORDS = {  # the verb for one GPU, the verb for several, and the reason why few are left
    Use.FIXED: (
        "belongs to jobs that cannot be resized",
        "belong to jobs that cannot be resized",
        "jobs that cannot be resized",
    ),
    Use.STARTING: (
        "belongs to jobs that are still starting",
        "belong to jobs that are still starting",
        "jobs that are still starting",
    ),
    Use.LENT: ("is lent", "are lent", "loans"),
    Use.RESERVED: ("is reserved by the policy file", "are reserved by the policy file", "reservations"),
    Use.BARRED: ("takes no new work", "take no new work", "GPUs that take no new work"),
    Use.UNKNOWN: ("has a job that is not known", "have jobs that are not known", "jobs that are not known"),
}


def asks(view: ClusterView, row: int, wanted: int) -> str:
    """Before a number of GPUs: how a job is bound to it."""
    return ASKS if wanted <= view.jobs.min_gpus[row] else "is given all or none of"


def too_few(
    view: ClusterView,
    what: str,
    there: int,
    left: int,
    known: int,
    least: int,
    verb: str = ASKS,
    aside: Sequence[tuple[Use, int]] = (),
) -> Reason:
    """There are too few GPUs for a job, even if it was alone. `what` it asks for; `there`: in view; `left`: with servers that are
    lost; `known`: also with those that nobody in view can have; `aside`: why, and how many of them the job could use."""
    if known < least:
        return Reason(ReasonCode.CLUSTER_TOO_SMALL, f"{verb} {what}, the cluster has {known}")
    lost = [server.server for server in view.absent]
    names = ", ".join(lost[:MOST_TOLD]) + (f" and {len(lost) - MOST_TOLD} more" if len(lost) > MOST_TOLD else "")
    gone = f"{names} {'is' if len(lost) == 1 else 'are'} lost"
    if left < least:
        taken = [(use, count) for use, count in aside if count]
        if sum(count for _, count in taken) == known - left:
            told = [
                f"{count}{'' if at else f' of {known}'} {_WORDS[use][0 if count == 1 else 1]}"
                for at, (use, count) in enumerate(taken)
            ]
        else:  # it needs GPUs that are together on a server, or of one type
            told = [f"{' and '.join(_WORDS[use][2] for use, _ in taken) or 'others'} leave {left} of {known}"]
        told += [gone] if lost else []
        held = ", and ".join([", ".join(told[:-1]), told[-1]]) if len(told) > 1 else told[0]
        return Reason(ReasonCode.NO_FREE_GPUS, f"waits for {what}: {held}")
    return Reason(ReasonCode.CLUSTER_TOO_SMALL, f"waits for {what}: {there} of {left} are there, {gone}")


def told_by_hand(view: ClusterView, by_hand: Ints | None) -> str:
    """Who holds GPUs because somebody has said so: those that others miss. In words; empty: nobody does."""
    if by_hand is None:
        return ""
    holders = [(view.jobs.name(row), int(by_hand[row])) for row in sorted(view.manual_shares) if by_hand[row]]
    told = [f"{name} has {gpu_count(share)} by hand" for name, share in holders[:MOST_TOLD]]
    more = len(holders) - len(told)
    return ", ".join([*told, *([f"{more} more have some"] if more else [])])


def beside_by_hand(
    view: ClusterView, row: int, share: int, by_hand: Callable[[], str], reason: Reason | None
) -> Reason | None:
    """A reason, and who holds by hand what the job could use. `by_hand`: that in words (`told_by_hand`)."""
    if share >= view.jobs.max_gpus[row] or not (held := by_hand()):
        return reason
    return Reason(reason.code, f"{reason.text}; {held}") if reason is not None else Reason(ReasonCode.MANUAL, held)


def gives_way(view: ClusterView, kept: Kept) -> Reason:
    """A job got less than it could use, since others have been promised to end in time."""
    rows = [row for row, one in sorted(kept.plan.found.items()) if one.gpus and row < len(view.jobs)]
    names = [view.jobs.name(row) for row in rows]
    told = ", ".join(names[:MOST_TOLD]) + (f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else "")
    return Reason(ReasonCode.BEHIND_ANOTHER, f"gives GPUs to jobs with deadlines{': ' if told else ''}{told}")


def starts_later(view: ClusterView, kept: Kept, row: int) -> Reason | None:
    """A promised job has no GPUs, as it has time; None: it is another one, or its plan gives it some now."""
    filled = kept.plan.found.get(row)
    if filled is None or filled.gpus:
        return None
    starts_s = kept.starts_s(row)
    when = f"in {duration(starts_s - view.now)} at the latest" if math.isfinite(starts_s) else "later"
    return Reason(ReasonCode.BEHIND_ANOTHER, f"starts {when}, which is early enough for its deadline")


def gives_way_to_quotas() -> Reason:
    """A job got less than the policy gave it, since the GPUs are others', or its owner may have no more."""
    return Reason(ReasonCode.QUOTA, "gives way to quotas: `quotas` in the policy file says what is whose")


def packed(wanted: int, share: int) -> Reason:
    """Network packing has made a share smaller."""
    instead = gpu_count(share) if share else "none"
    return Reason(ReasonCode.PACKED, f"{instead} in place of {wanted}, so that no two jobs share a server's network")
