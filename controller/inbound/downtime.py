"""Exclusion of time in which the controller did not run.

The controller was stopped or starved, its machine slept, or its clock jumped. A server that seems silent may have sent
messages meanwhile. So leases begin again, and all timers are moved by the length of the absence. A job's GPU time is
counted up to the start of the absence, and from its end on.
"""

from __future__ import annotations

import math

from ...protocol.messages import EventKind
from ...protocol.times import AWAY_S, WATCH_INTERVAL_S
from ..cluster import Cluster

TELL_INTERVAL_S = 60.0  # a controller without processor time is absent repeatedly; reports are limited to this interval


class Absences:
    """Detector of absences of the controller, which also reports them."""

    def __init__(self, server_lease_s: float) -> None:
        self._away_s = min(AWAY_S, server_lease_s / 2)
        # Interval between turns that are made only to notice an absence.
        self.watch_s = min(WATCH_INTERVAL_S, self._away_s * WATCH_INTERVAL_S / AWAY_S)
        self._told_s = -math.inf
        self._untold = 0

    def leave_out(self, cluster: Cluster, before: float, now: float) -> None:
        """Exclude the time since the last turn, at `before`, if the controller was absent until `now`."""
        gap_s = now - before
        if 0 <= gap_s <= self._away_s or not _shift(cluster, before, now):
            return
        if 0 <= now - self._told_s < TELL_INTERVAL_S:
            self._untold += 1
            return
        cluster.history.add(now, EventKind.CONTROLLER_AWAY, None, _sentence(gap_s, self._untold))
        self._told_s, self._untold = now, 0


def _sentence(gap_s: float, before: int) -> str:
    """Describe an absence as far as it is known.

    A process that does not run cannot measure time, so the length comes from a clock that may have been set.
    """
    what = f"was stopped or starved for {gap_s:.1f} s, or its clock was set forward by as much"
    if gap_s < 0:
        what = f"found its clock set back by {-gap_s:.1f} s"
    also = f" (and {before} times more since it last said so)" if before else ""
    return f"the controller {what}{also}: leases begin anew"


def _shift(cluster: Cluster, before: float, now: float) -> bool:
    """Exclude the time from `before` to `now` from all timers; return whether there are any."""
    waits = cluster.servers.leave_out(before, now)
    waits = cluster.clients.postpone(now - before) or waits
    for job in cluster.jobs.values():
        if job.share_gpus or job.id in cluster.jobs.timers or job.workers or job.timers():  # one may not be settled yet
            job.leave_out(before, now)
            cluster.jobs.touch(job)
            waits = True
    cluster.planning.leave_out(now - before)
    return waits
