"""Messages to users about quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...protocol.texts import gpu_count
from .reservations import TimedReservation
from .terms import Quota, Quotas

MOST_TOLD = 8  # users and groups that a line lists


def changes(before: Quotas, after: Quotas) -> str:
    """Return the changed quotas, in a line; "" if nothing has changed."""
    lines = list(_changes(before, after))
    more = len(lines) - MOST_TOLD
    return "; ".join([*lines[:MOST_TOLD], *([f"{more} more"] if more > 0 else [])])


def _changes(before: Quotas, after: Quotas) -> Iterator[str]:
    for name in sorted({*before.groups, *after.groups}):
        group = after.groups.get(name)
        if group is None:
            yield f"group {name} is gone"
        elif group != before.groups.get(name):
            yield f"group {name} ({', '.join(group.members[:MOST_TOLD])}): {quota_text(group)}"
    for name in sorted({*before.users, *after.users}):
        if before.users.get(name) != (own := after.users.get(name)):
            yield f"{name}: {quota_text(own)}" if own is not None else f"{name}: none of its own"
    if before.default != after.default:
        yield f"each other user: {quota_text(after.default)}"


def reservation_messages(before: Sequence[TimedReservation], after: Sequence[TimedReservation]) -> str:
    """Return the new and the removed reservations, in a line; "" if nothing has changed."""
    lines = [
        f"{one.name} has {gpu_count(one.gpus)} from {one.starts} to {one.ends}" for one in after if one not in before
    ]
    there = {one.name for one in after}
    lines += [f"{one.name} is gone" for one in before if one.name not in there]
    more = len(lines) - MOST_TOLD
    return "; ".join([*lines[:MOST_TOLD], *([f"{more} more"] if more > 0 else [])])


def quota_text(quota: Quota) -> str:
    """Format a quota: "4 GPUs, at most 6, 10 jobs"."""
    parts = [
        gpu_count(quota.gpus) if quota.gpus else "",
        f"at most {quota.most_gpus}{'' if quota.gpus else ' GPUs'}" if quota.most_gpus is not None else "",
        f"{quota.jobs} job{'' if quota.jobs == 1 else 's'}" if quota.jobs is not None else "",
        f"{quota.promised_gpu_hours:g} promised GPU-hours" if quota.promised_gpu_hours is not None else "",
    ]
    return ", ".join(filter(None, parts)) or "none"
