"""Records of idle times (`scheduler.transient`): one for each server whose GPUs borrowers have had."""

from __future__ import annotations

import math

from ...protocol.model import ServerId, Value
from ...scheduler.transient import EDGES_S, MOST, Idle

PREFIX = "/idle/"


class IdleRecord(Value, frozen=True, kw_only=True):
    """Recorded form of `Idle`. `since_s`: GPU and Unix time."""

    counts: tuple[int, ...]
    borrowed: tuple[int, ...] = ()
    since_s: tuple[tuple[int, float], ...] = ()


def key(server: ServerId) -> str:
    return PREFIX + server


def record(idle: Idle) -> IdleRecord:
    return IdleRecord(
        counts=idle.counts, borrowed=tuple(sorted(idle.borrowed)), since_s=tuple(sorted(idle.since_s.items()))
    )


def recovered(kept: IdleRecord) -> Idle:
    """Return the recorded idle times. Bins of another version are not comparable, so counting starts again then."""
    if len(kept.counts) != len(EDGES_S) or not all(0 <= count <= MOST for count in kept.counts):
        return Idle()
    since_s = {gpu: at_s for gpu, at_s in kept.since_s if math.isfinite(at_s)}
    return Idle(kept.counts, frozenset(kept.borrowed), since_s)
