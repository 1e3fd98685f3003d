"""Transient GPUs: idle GPUs that a borrower will soon take again, and when growing onto them pays (EDL 3.2, 6.2).

Four in ten idle times of GPUs are shorter than four minutes (EDL Fig. 2a). A job that grows pauses, and pauses again
when it shrinks. So two idle GPUs beside four, for two minutes, are a loss if each change takes 30 s (EDL 3.2). The
scheduler counts for how long GPUs have been idle, and leaves those idle that will be taken before a resize pays.

*Borrowers* keep their GPUs whatever the policy says: loans, reservations of the policy file, and gangs. An idle time
begins when a borrower gives a GPU back, and ends when a borrower takes it. A GPU that no borrower has had is not
transient.

*How long they last.* Times are counted in bins, by server. A server with fewer than `LEAST` idle times counts as an
average server. Beyond `MOST` all counts are halved, so that old times are forgotten. The remaining part of an idle time
is estimated from the counted times that lasted longer. If fewer than `LEAST` did, nothing is known, and the GPU counts
as lasting: a wrong guess costs one resize, a wrong refusal would leave a GPU idle for ever.

*When a resize pays.* Let T(n) be the throughput now, and T(m) with the transient GPUs. Growing takes `start_s` until
new workers train, and stops training for `pause_s`, as shrinking does. If the GPUs stay for R, the job gains (T(m) -
T(n)) max(0, R - start_s) and loses pause_s (T(n) + T(m)). It grows if the mean gain is greater than the loss. The best
case decides, with all transient GPUs that the job can use. A waiting job has no throughput to lose and may start on
them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from msgspec import structs

from ..protocol.model import ServerId
from ..protocol.texts import gpu_count
from .deadlines.messages import duration
from .sets import union
from .view import ClusterView, Gpus, Reason, ReasonCode, Transient

EDGES_S: tuple[float, ...] = (
    0.0,
    *(1.4**power for power in range(32)),
)  # starts of the bins of idle times (s); the last bin has all times longer than 9 h
LEAST = 5
MOST = 200

_MIDDLES_S = tuple((low + high) / 2 for low, high in zip(EDGES_S, (*EDGES_S[1:], EDGES_S[-1] * 1.4), strict=True))
_NONE = (0,) * len(EDGES_S)


@dataclass(frozen=True)
class Idle:
    """Idle times of one server's GPUs. GPUs are indices on the server.

    `counts`: numbers of idle times that are over, by bin. `borrowed`: GPUs that borrowers have. `since_s`: when borrowers
    have given the other GPUs back (Unix time).
    """

    counts: tuple[int, ...] = _NONE
    borrowed: frozenset[int] = frozenset()
    since_s: Mapping[int, float] = field(default_factory=dict)

    def seen(self, now: float, borrowed: frozenset[int]) -> Idle:
        """Return the idle times after borrowers have come to have these GPUs. GPUs that come and go together count as one."""
        if borrowed == self.borrowed:
            return self
        ended = {self.since_s[gpu] for gpu in borrowed if gpu in self.since_s}
        since_s = {gpu: at_s for gpu, at_s in self.since_s.items() if gpu not in borrowed}
        since_s |= dict.fromkeys(sorted(self.borrowed - borrowed), now)
        counts = self.counts
        for at_s in ended:
            counts = counted(counts, now - at_s)
        return Idle(counts, borrowed, since_s)


def counted(counts: tuple[int, ...], lasted_s: float) -> tuple[int, ...]:
    """Return the counts with one more idle time."""
    found = list(counts)
    found[max(0, bisect_right(EDGES_S, lasted_s) - 1)] += 1
    return tuple(count // 2 for count in found) if sum(found) > MOST else tuple(found)


def left_s(counts: Sequence[int], idle_s: float) -> tuple[float, ...]:
    """Return the remaining idle times (s) of GPUs that were idle for `idle_s`; empty if too few are known."""
    first = max(0, bisect_right(EDGES_S, idle_s) - 1)
    found = [max(0.0, _MIDDLES_S[place] - idle_s) for place in range(first, len(counts)) for _ in range(counts[place])]
    return tuple(found) if len(found) >= LEAST else ()


@dataclass(frozen=True)
class Cost:
    """Cost of a resize for a job: seconds until new workers train, and seconds for which training stands still."""

    start_s: float
    pause_s: float


def pays(rest_s: Sequence[float], cost: Cost, before: float, after: float) -> bool:
    """Return whether growing from throughput `before` to `after` pays. `rest_s`: result of `left_s`."""
    if not rest_s:
        return True
    used_s = sum(max(0.0, each - cost.start_s) for each in rest_s) / len(rest_s)
    return (after - before) * used_s > cost.pause_s * (before + after)


def pays_after_s(cost: Cost, before: float, after: float) -> float:
    """Return how long GPUs have to stay until growing pays; inf: it never does."""
    return cost.start_s + cost.pause_s * (before + after) / (after - before) if after > before else math.inf


@dataclass(frozen=True)
class Past:
    """Idle times of all servers."""

    servers: Mapping[ServerId, Idle] = field(default_factory=dict)

    def counts(self, server: ServerId) -> tuple[int, ...]:
        """Return the counts of idle times for a server: its own, or if these are too few, those of all servers."""
        own = self.servers[server].counts
        if sum(own) >= LEAST:
            return own
        return tuple(map(sum, zip(*(idle.counts for idle in self.servers.values()), strict=True)))


@dataclass(frozen=True)
class _Returned:
    """Idle GPUs of a server that were given back at one time, and the remaining idle times of such GPUs."""

    since_s: float
    rest_s: tuple[float, ...]
    gpus: Gpus


def confine(view: ClusterView, past: Past, costs: Mapping[int, Cost]) -> tuple[ClusterView, float]:
    """Return the view in which no job grows onto GPUs that will be taken too soon, and when to look again (Unix time, s).

    `costs`: by row, of the jobs that may be confined.
    """
    returned = _returned(view, past)
    away: dict[int, Gpus] = {}
    reasons: dict[int, str] = {}
    for row, cost in costs.items() if returned else ():
        if row not in view.placements or row in view.manual_shares:
            continue
        own = view.placements[row]
        able = [each for each in returned if each.gpus & view.usable(row, own)]
        before, after = _growth(view, row, union(each.gpus for each in able).bit_count())
        refused = [each for each in able if not pays(each.rest_s, cost, before, after)]
        if refused and after > before:
            away[row] = union(each.gpus for each in refused)
            reasons[row] = _words(refused, pays_after_s(cost, before, after))
    if not away:
        return view, math.inf
    every = union(away.values())
    looks_s = min(_next_s(view.now, each.since_s) for each in returned if each.gpus & every)
    return structs.replace(view.confined(away), transient=Transient(away, reasons)), looks_s


def _returned(view: ClusterView, past: Past) -> list[_Returned]:
    """Return the transient GPUs that no job in view has."""
    taken = union(view.placements.values())
    found: dict[tuple[ServerId, float], Gpus] = {}
    begin = 0
    for server in view.servers:
        idle = past.servers.get(server.server)
        if idle is not None and idle.since_s:
            for at, gpu in enumerate(server.gpus):
                bit = 1 << begin + at
                if gpu in idle.since_s and not bit & taken:
                    key = (server.server, idle.since_s[gpu])
                    found[key] = found.get(key, 0) | bit
        begin += len(server.gpus)
    return [
        _Returned(since_s, left_s(past.counts(server), view.now - since_s), gpus)
        for (server, since_s), gpus in found.items()
    ]


def _growth(view: ClusterView, row: int, more: int) -> tuple[float, float]:
    """Return the throughput of a job now, and with up to `more` further GPUs, as many as it can use."""
    jobs, share = view.jobs, view.placements[row].bit_count()
    most = max(share, min(share + more, int(jobs.max_gpus[row]), jobs.curves.most))
    return float(jobs.speedup(row, share)), float(jobs.speedup(row, most))


def _next_s(now: float, since_s: float) -> float:
    """Return when the idle time of a GPU reaches the next bin (Unix time, s)."""
    return next((since_s + edge for edge in EDGES_S if since_s + edge > now), math.inf)


def _words(refused: Sequence[_Returned], least_s: float) -> str:
    count = sum(each.gpus.bit_count() for each in refused)
    likely_s = median([rest for each in refused for rest in each.rest_s])
    are, them = ("is", "it") if count == 1 else ("are", "them")
    return (
        f"{gpu_count(count)} {are} left idle: as before, a borrower takes {them} in about {duration(likely_s)}, and growing "
        f"pays after {duration(least_s)}"
    )


def told(view: ClusterView, row: int, share: int) -> Reason | None:
    """Return why a job does not grow, where idle GPUs are transient."""
    found = view.transient
    if found is None or row not in found.away or share >= view.jobs.max_gpus[row]:
        return None
    return Reason(ReasonCode.TRANSIENT, found.told[row])
