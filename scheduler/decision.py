"""The result of a decision, and the reasons that do not depend on the policy."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..protocol.texts import gpu_count
from .arrays import Ints
from .deadline_guard import Kept
from .deadlines.messages import duration
from .placement.fewest_servers import Placements
from .view import ClusterView, Reason, ReasonCode, Use

MOST_TOLD = 3  # manual holders or servers that a reason lists


def _nothing(row: int) -> tuple[()]:
    return ()


class Stage(enum.Enum):
    """The stages that decide about a share, in this order (`pipeline`; the last two in the controller)."""

    BY_HAND = "by-hand"  # a manual share, which replaces the policy and its stages
    POLICY = "policy"
    QUOTAS = "quotas"
    PROMISES = "promises"  # deadlines that other jobs were promised
    PACKING = "packing"
    RESOURCES = "resources"  # workers for which a server has not enough cores or memory
    EXCLUDED = "excluded-gpus"  # some of the chosen GPUs take no new work
    AVOIDED = "avoided-servers"  # some of the chosen GPUs are on servers where the job cannot work


@dataclass(frozen=True)
class Step:
    """A job's number of GPUs after a stage."""

    stage: Stage
    gpus: int


@dataclass(frozen=True)
class Decision:
    """All shares and GPUs, and why some jobs get less than they could use; all by row of the view."""

    shares: Ints
    placements: Placements  # GPUs of the jobs with a share
    why: Callable[[int], Reason | None]  # for rows with less than their maximum or manual share
    review_s: float  # Unix time at which to decide again, even without an event
    wanted: Ints  # the policy's shares, before packing
    kept: Kept | None = None  # the handling of deadlines; None: no job has one, or they were not examined
    every: Callable[[int], tuple[Reason, ...]] = _nothing  # all reasons of such a row, that of `why` first
    steps: Callable[[int], tuple[Step, ...]] = _nothing  # for any row: the share after each stage that decided about it


def too_little_for(wanted: int, share: int, gpus: int) -> Reason | None:
    """Return the reason why a manual share could not be granted in full; None if it was."""
    if share == wanted:
        return None
    return Reason(ReasonCode.MANUAL, f"set to {gpu_count(wanted)} by hand, {share} of {gpus} could be had")


ASKS = "asks for at least"
_WORDS = {  # by use of the GPUs outside of the view: singular verb, plural verb, and name of the use
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
    """Return the verb before the number of `wanted` GPUs in a message: the least number, or the only one."""
    return ASKS if wanted <= view.jobs.min_gpus[row] else "is given all or none of"


def too_few(
    view: ClusterView,
    what: str,
    there: int,
    left: int,
    known: int,
    least: int,
    verb: str = ASKS,
    excluded: Sequence[tuple[Use, int]] = (),
) -> Reason:
    """Return the reason when there are too few GPUs for a job, even if it was alone.

    `what`: the GPUs that it asks for. `there`: number in view. `left`: with lost servers. `known`: also with those that
    no job in view can have. `excluded`: why, and how many of them the job could use.
    """
    if known < least:
        return Reason(ReasonCode.CLUSTER_TOO_SMALL, f"{verb} {what}, the cluster has {known}")
    lost = [server.server for server in view.absent]
    names = ", ".join(lost[:MOST_TOLD]) + (f" and {len(lost) - MOST_TOLD} more" if len(lost) > MOST_TOLD else "")
    gone = f"{names} {'is' if len(lost) == 1 else 'are'} lost"
    if left < least:
        taken = [(use, count) for use, count in excluded if count]
        if sum(count for _, count in taken) == known - left:
            parts = [
                f"{count}{'' if at else f' of {known}'} {_WORDS[use][0 if count == 1 else 1]}"
                for at, (use, count) in enumerate(taken)
            ]
        else:  # the job needs GPUs on one server, or of one type
            parts = [f"{' and '.join(_WORDS[use][2] for use, _ in taken) or 'others'} leave {left} of {known}"]
        parts += [gone] if lost else []
        held = ", and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]
        return Reason(ReasonCode.NO_FREE_GPUS, f"waits for {what}: {held}")
    return Reason(ReasonCode.CLUSTER_TOO_SMALL, f"waits for {what}: {there} of {left} are there, {gone}")


def told_by_hand(view: ClusterView, by_hand: Ints | None) -> str:
    """Return in words which jobs hold GPUs by a manual share, at the expense of others; empty if none does."""
    if by_hand is None:
        return ""
    holders = [(view.jobs.name(row), int(by_hand[row])) for row in sorted(view.manual_shares) if by_hand[row]]
    texts = [f"{name} has {gpu_count(share)} by hand" for name, share in holders[:MOST_TOLD]]
    more = len(holders) - len(texts)
    return ", ".join([*texts, *([f"{more} more have some"] if more else [])])


def beside_by_hand(
    view: ClusterView, row: int, share: int, by_hand: Callable[[], str], reason: Reason | None
) -> Reason | None:
    """Return a reason, extended by the manual shares that hold GPUs the job could use.

    `by_hand`: returns those in words (`told_by_hand`).
    """
    if share >= view.jobs.max_gpus[row] or not (held := by_hand()):
        return reason
    return Reason(reason.code, f"{reason.text}; {held}") if reason is not None else Reason(ReasonCode.MANUAL, held)


def gives_way(view: ClusterView, kept: Kept) -> Reason:
    """Return the reason of a job with less than it could use, because other jobs have promised deadlines."""
    rows = [row for row, one in sorted(kept.plan.found.items()) if one.gpus and row < len(view.jobs)]
    names = [view.jobs.name(row) for row in rows]
    listed = ", ".join(names[:MOST_TOLD]) + (f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else "")
    return Reason(ReasonCode.BEHIND_ANOTHER, f"gives GPUs to jobs with deadlines{': ' if listed else ''}{listed}")


def starts_later(view: ClusterView, kept: Kept, row: int) -> Reason | None:
    """Return the reason of a promised job that starts later; None for another job, or if its plan gives it GPUs now."""
    filled = kept.plan.found.get(row)
    if filled is None or filled.gpus:
        return None
    starts_s = kept.starts_s(row)
    when = f"in {duration(starts_s - view.now)} at the latest" if math.isfinite(starts_s) else "later"
    return Reason(ReasonCode.BEHIND_ANOTHER, f"starts {when}, which is early enough for its deadline")


def gives_way_to_quotas() -> Reason:
    """Return the reason of a job with less than the policy's share, because of other tenants' guarantees or its owner's
    limit."""
    return Reason(ReasonCode.QUOTA, "gives way to quotas: `quotas` in the policy file says what is whose")


def packed(wanted: int, share: int) -> Reason:
    """Return the reason of a share that network packing has reduced."""
    instead = gpu_count(share) if share else "none"
    return Reason(ReasonCode.PACKED, f"{instead} in place of {wanted}, so that no two jobs share a server's network")
