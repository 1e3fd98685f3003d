"""What comes of a decision, and the reasons that do not depend on the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.texts import gpu_count
from .placement.fewest_servers import Placements
from .view import ClusterView, Ints, Reason, ReasonCode

MOST_TOLD = 3  # jobs that hold GPUs by hand, or servers, in a reason


@dataclass(frozen=True)
class Decision:
    """Everybody's share, who gets which GPUs, and why some get less than they could use; all by row of the view."""

    shares: Ints
    placements: Placements  # of the jobs with a share
    why: Callable[[int], Reason | None]  # asked for rows whose share is below their maximum, or below that set by hand
    review_s: float  # decide again then (Unix time), even if nothing has happened
    wanted: Ints  # what the policy gave, before packing


def too_little_for(wanted: int, share: int, gpus: int) -> Reason | None:
    """Of a share set by hand."""
    if share == wanted:
        return None
    return Reason(ReasonCode.MANUAL, f"set to {gpu_count(wanted)} by hand, {share} of {gpus} could be had")


def too_few(
    view: ClusterView, what: str, there: int, left: int, known: int, least: int, per_server: bool = False
) -> Reason:
    """There are too few GPUs for a job, even if it was alone. `what` it asks for; `there`: in view; `left`: with servers that are
    lost; `known`: also with GPUs of jobs that nobody may resize."""
    if known < least:
        return Reason(ReasonCode.CLUSTER_TOO_SMALL, f"asks for at least {what}, the cluster has {known}")
    if left < least:
        verb = "belongs" if known - left == 1 else "belong"
        belong = f"{known - left} of {known} {verb} to jobs that cannot be resized"
        whole = f"jobs that cannot be resized leave {left} of {known}"
        return Reason(ReasonCode.NO_FREE_GPUS, f"waits for {what}: {whole if per_server else belong}")
    lost = [server.server for server in view.absent]
    names = ", ".join(lost[:MOST_TOLD]) + (f" and {len(lost) - MOST_TOLD} more" if len(lost) > MOST_TOLD else "")
    verb = "is" if len(lost) == 1 else "are"
    return Reason(ReasonCode.CLUSTER_TOO_SMALL, f"waits for {what}: {there} of {left} are there, {names} {verb} lost")


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


def packed(wanted: int, share: int) -> Reason:
    """Network packing has made a share smaller."""
    instead = gpu_count(share) if share else "none"
    return Reason(ReasonCode.PACKED, f"{instead} in place of {wanted}, so that no two jobs share a server's network")
