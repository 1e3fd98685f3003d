"""Time in which the controller was not listening does not count: it was stopped or starved, its machine slept, its clock jumped.

Whoever was silent meanwhile may have spoken all the time. So leases begin anew, and everything that was to happen at some time
happens as much later. What a job has been given is counted up to where the controller stopped listening, and on from where it
goes on.
"""

from __future__ import annotations

import math

from ..protocol.times import AWAY_S, WATCH_INTERVAL_S
from .cluster import Cluster

TELL_INTERVAL_S = 60.0  # a starved controller is away again and again, and says so once in a while


class Absences:
    """Notices when the controller has been away, and tells of it."""

    def __init__(self, server_lease_s: float) -> None:
        self._away_s = min(AWAY_S, server_lease_s / 2)
        self.watch_s = min(
            WATCH_INTERVAL_S, self._away_s * WATCH_INTERVAL_S / AWAY_S
        )  # between turns, to see an absence
        self._told_s = -math.inf
        self._untold_s: list[float] = []

    def leave_out(self, cluster: Cluster, before: float, now: float) -> None:
        """The controller has a turn `now`; `before` was its last one."""
        gap_s = now - before
        if 0 <= gap_s <= self._away_s or not _shift(cluster, before, now):
            return
        self._told_s += gap_s
        self._untold_s.append(gap_s)
        if now - self._told_s >= TELL_INTERVAL_S:
            cluster.tell(now, "controller-away", None, _sentence(self._untold_s))
            self._told_s, self._untold_s = now, []


def _sentence(gaps_s: list[float]) -> str:
    *earlier, last_s = gaps_s
    what = f"has not listened for {last_s:.1f} s" if last_s >= 0 else f"found its clock set back by {-last_s:.1f} s"
    also = f", and was away {len(earlier)} times before" if earlier else ""
    return f"the controller {what}{also}: leases begin anew"


def _shift(cluster: Cluster, before: float, now: float) -> bool:
    """Leave the time from `before` to `now` out of everything that waits. Whether anything does."""
    waits = False
    for name, session in cluster.sessions.items():
        if session.alive or name in cluster.awaited:
            session.last_heard_s = now
            waits = True
    for pending in cluster.pending_logs.values():
        pending.deadline_s += now - before
        waits = True
    for health in cluster.health.values():
        if health.until_s is not None:
            health.until_s += now - before
    for job in cluster.jobs.values():
        if job.share_gpus or job.id in cluster.timers:
            job.leave_out(before, now)
            cluster.touch(job)
            waits = True
    cluster.review_s += now - before
    return waits
