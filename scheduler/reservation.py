"""A reservation for the head of the queue: GPUs are held for a job that gangs would otherwise delay for ever. Pure.

Theory of operation
-------------------

A fixed gang keeps its GPUs until it ends, so policies divide the GPUs that gangs leave (`controller.reconcile.gangs`).
A job that needs more than that waits; if small gangs begin on every GPU that comes free, it waits for ever. Backfilling
is the usual answer (EASY: D. Lifka, "The ANL/IBM SP scheduling system", 1995): the first job that waits has a
reservation, and others may pass it only where that does not delay its start.

*Which job.* The first job, by priority and then in the order of submission, that has waited for a while, that fits into
the present servers, and that does not fit beside the gangs. It keeps the reservation until it starts. No other job has
one.

*Which GPUs.* As many GPUs as the job needs, of one of its choices (`kinds`); for a job with a fixed number per server,
that number on each of some servers. Each such set is a *region*. Of several possible sets, the one with the fewest
missing GPUs is taken. No job begins there that could not be made to leave again. So the number of missing GPUs only
falls, and the chosen set stays the best.

*Which jobs may pass.* The duration of commands is not known. So a gang may begin in a region only on GPUs that are
spare *whichever* of the running jobs end first. The head starts when enough of them have ended, and the fewest GPUs
that are free then are the smallest sum of some of their sizes that is enough (`_spare`). Elastic jobs may use all held
GPUs: they shrink, or give way, when it is time.

*When.* The head starts as soon as no job that keeps its GPUs is on the held ones. Its share precedes the policy's, as a
manual one does. Under a policy without preemption the promise holds too: running jobs count as gangs (`GOING_ON`), or
with their minimums (`SHRINKING`).

So the head starts when enough of the jobs have ended that kept its GPUs when it got the reservation, whatever comes
after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ..protocol.model import JobId
from ..protocol.texts import gpu_count
from .arrays import Ints
from .kinds import Demand
from .sets import elements, some, union
from .view import ClusterView, Gpus, Reason, ReasonCode, Reservation, ServerInView, gpus_by_sort, limit_for

GOING_ON = frozenset({"fifo", "backfill", "yarn-cs"})  # under these policies running jobs keep their shares
SHRINKING = frozenset({"elastic-fifo", "elastic-backfill"})  # under these policies they keep at least their minimums


Most = Callable[[int], int]  # by row: how many GPUs may be held for the job


@dataclass(frozen=True)
class Queue:
    """Waiting jobs by row of a view, and GPUs outside of the view.

    GPU sets are positions among the GPUs of `servers`, not in the view.
    """

    servers: tuple[ServerInView, ...]  # present servers, with all of their GPUs
    usable: Gpus  # GPUs that may take new work
    busy: tuple[Gpus, ...]  # GPUs of each job that is not in view
    gangs: Gpus  # GPUs of those jobs among them that keep their GPUs until they end
    demands: Sequence[Demand]
    demand_of: Ints  # by row: index into `demands`
    stays: npt.NDArray[np.bool_]  # by row: whether the job cannot be resized once it has begun
    begun: frozenset[int]  # rows with processes


@dataclass(frozen=True)
class _Region:
    """Some GPUs, of which `least` must come free for the head, all at one time."""

    gpus: Gpus
    least: int
    missing: int  # GPUs that must still come free before the head can start; negative: more than enough are free
    spare: int  # GPUs of the region that other jobs may keep until they end


def reserve(
    view: ClusterView,
    queue: Queue,
    policy: str,
    rigid: bool,
    after_s: float,
    before: JobId | None,
    most: Most | None = None,
) -> tuple[ClusterView, float]:
    """Return the view with a reservation for the head of the queue, if there is one, and when to look again (Unix time,
    s).

    `rigid`: the policy gives jobs their requested GPUs or none. `after_s`: how many seconds a job waits without a
    reservation. `before`: the job that had it. `most`: how many GPUs may be held for the job of a row; None: all.
    """
    return _Reserving(view, queue, policy, rigid, most).found(after_s, before)


class _Reserving:
    def __init__(self, view: ClusterView, queue: Queue, policy: str, rigid: bool, most: Most | None) -> None:
        self._view, self._queue, self._rigid, self._most = view, queue, rigid, most
        self._bits = _bits_of(view.servers, queue.servers)
        jobs = view.jobs
        placed = {row: self._outer(gpus) for row, gpus in view.placements.items()}
        self._kept: dict[int, Gpus] = {}  # by row: GPUs that other jobs in view would not give back
        self._floors: dict[int, Gpus] = {}  # by row: GPUs on which other jobs in view would keep their minimums
        for row, gpus in placed.items():
            if row in view.manual_shares or policy in GOING_ON or (row not in queue.begun and queue.stays[row]):
                self._kept[row] = gpus
            elif policy in SHRINKING:
                self._floors[row] = gpus
        self._there = union(1 << bit for bit in self._bits) & queue.usable
        self._everyone = policy in GOING_ON
        self._options = [limit_for(demand, gpus_by_sort(queue.servers)).options for demand in queue.demands]
        self._least = jobs.requested_gpus if rigid else jobs.min_gpus

    def found(self, after_s: float, before: JobId | None) -> tuple[ClusterView, float]:
        """Return the result of `reserve`."""
        view, queue = self._view, self._queue
        waiting = np.ones(len(view.jobs), dtype=bool)
        waiting[[*view.placements, *view.manual_shares, *queue.begun]] = False
        most = np.array([self._room(code, queue.usable) for code in range(len(queue.demands))])[queue.demand_of]
        beside = np.array([self._room(code, queue.usable & ~queue.gangs) for code in range(len(queue.demands))])
        self._least = np.minimum(self._least, np.maximum(most, view.jobs.min_gpus))
        able = waiting & (self._least <= most) & (self._least > beside[queue.demand_of])
        due_s = view.jobs.waiting_since_s + after_s
        head = self._keeper(before, most)
        if head is None:
            old = np.flatnonzero(able & (due_s <= view.now)).tolist()
            old.sort(key=lambda row: -int(view.jobs.priority[row]))  # stable, so earlier submissions stay first
            head = next((row for row in old if self._may(row)), None)
        if head is None:
            later = due_s[able & (due_s > view.now)]
            return view, float(later.min()) if len(later) else math.inf
        regions = self._regions(head)
        return (self._with(head, regions), math.inf) if regions else (view, math.inf)

    def _keeper(self, before: JobId | None, most: Ints) -> int | None:
        """Return the row of the job that had the reservation, if it still waits."""
        if before is None:
            return None
        for row in range(len(self._view.jobs)):
            if self._view.jobs.name(row) == before:
                waits = row not in self._queue.begun and row not in self._view.manual_shares
                return row if waits and self._least[row] <= most[row] and self._may(row) else None
        return None

    def _may(self, row: int) -> bool:
        return self._most is None or self._least[row] <= self._most(row)

    # -- which GPUs

    def _room(self, code: int, gpus: Gpus) -> int:
        """Return the largest share that such a job could have of these GPUs."""
        each = self._queue.demands[code].per_server
        options = [option & gpus for option in self._options[code]]
        if not each:
            return max([option.bit_count() for option in options], default=0)
        servers = list(_masks(self._queue.servers))
        return each * max([sum((option & one).bit_count() >= each for one in servers) for option in options], default=0)

    def _regions(self, head: int) -> list[_Region]:
        """Return the regions where the head starts, with the fewest missing GPUs; empty if there are none."""
        code, least = int(self._queue.demand_of[head]), int(self._least[head])
        each = self._queue.demands[code].per_server
        ways = []
        for option in self._options[code]:
            able = option & self._queue.usable
            if each:
                rooms = [self._region(head, able & one, each) for one in _masks(self._queue.servers)]
                there = sorted((one for one in rooms if one is not None), key=lambda one: max(0, one.missing))
                way = there[: least // each]
                ways += [way] if way and len(way) * each >= least else []
            elif (one := self._region(head, able, least)) is not None:
                ways.append([one])
        return min(ways, key=_lacking, default=[])

    def _region(self, head: int, gpus: Gpus, least: int) -> _Region | None:
        """Return a region of these GPUs; None if `least` of them will never come free."""
        busy = [one & gpus for one in self._queue.busy]
        busy += [one & gpus for row, one in self._kept.items() if row != head]
        sizes = [one.bit_count() for one in busy]
        floor = 0
        for row, own in self._floors.items():
            if row != head:
                sizes.append(min(int(self._view.jobs.min_gpus[row]), (own & gpus).bit_count()))
                floor += sizes[-1]
        missing = least + floor - self._free(gpus, head).bit_count()
        spare = _spare(missing, sizes)
        return _Region(gpus, least, missing, spare) if spare is not None else None

    def _free(self, gpus: Gpus, head: int) -> Gpus:
        """Return the GPUs among these that are idle, or held by a job that would give them back."""
        return gpus & self._there & ~union(own for row, own in self._kept.items() if row != head)

    # -- the view with the reservation

    def _with(self, head: int, regions: Sequence[_Region]) -> ClusterView:
        view, queue = self._view, self._queue
        free = [self._free(region.gpus, head) for region in regions]
        pairs = list(zip(regions, free, strict=True))
        ready = _lacking(regions) == 0
        held = self._inner(union(there & ~self._left(region, there, ready) for region, there in pairs))
        theirs = self._inner(union(free)) if ready else 0
        stay = np.ones(len(view.jobs), dtype=bool) if self._everyone else queue.stays
        confined = {
            row: held & ~view.placements.get(row, 0)
            for row in np.flatnonzero(stay).tolist()
            if row != head and row not in view.manual_shares
        }
        need = int(self._least[head])
        got = need - min(need, sum(max(0, region.missing) for region in regions))
        found = Reservation(head, need, got, ready, held, frozenset(confined))
        return structs.replace(view.confined(confined, {head: theirs}), reservation=found)

    def _left(self, region: _Region, free: Gpus, ready: bool) -> Gpus:
        """Return the GPUs that other jobs may take, where fewest are free, so that those of the head are close to each
        other.

        Idle ones come first as long as the head does not start; when it starts, it gets the idle ones itself.
        """
        idle = free & ~union(self._outer(gpus) for gpus in self._view.placements.values())
        first = free & ~idle if ready else idle
        servers = sorted((free & one for one in _masks(self._queue.servers) if free & one), key=int.bit_count)
        return some(region.spare, *[one & first for one in servers], *servers)

    def _outer(self, gpus: Gpus) -> Gpus:
        """Convert a set of the view to one of all GPUs of the servers."""
        return union(1 << self._bits[bit] for bit in elements(gpus))

    def _inner(self, gpus: Gpus) -> Gpus:
        return union(1 << inner for inner, outer in enumerate(self._bits) if gpus >> outer & 1)


def _lacking(regions: Iterable[_Region]) -> int:
    return sum(max(0, region.missing) for region in regions)


def _spare(missing: int, sizes: Iterable[int]) -> int | None:
    """Return how many GPUs are surely left over when `missing` more have come free by ends of jobs with these sizes.

    None if so many never come free.
    """
    if missing <= 0:
        return -missing
    sums = 1  # bit n: some of the jobs have n GPUs together
    for size in sizes:
        sums |= sums << size
    enough = sums >> missing
    return (enough & -enough).bit_length() - 1 if enough else None


def _bits_of(seen: Sequence[ServerInView], servers: Sequence[ServerInView]) -> list[int]:
    """Return, for each bit of a view's GPU sets, the GPU's bit in sets of all GPUs of `servers`."""
    begins: dict[str, tuple[int, Mapping[int, int]]] = {}
    begin = 0
    for server in servers:
        begins[server.server] = begin, {index: at for at, index in enumerate(server.gpus)}
        begin += len(server.gpus)
    return [begins[one.server][0] + begins[one.server][1][index] for one in seen for index in one.gpus]


def _masks(servers: Sequence[ServerInView]) -> Iterable[Gpus]:
    begin = 0
    for server in servers:
        yield ((1 << len(server.gpus)) - 1) << begin
        begin += len(server.gpus)


def told(view: ClusterView, row: int, share: int) -> Reason | None:
    """Return why a job waits, where a reservation is the reason."""
    found = view.reservation
    if found is None or share:
        return None
    need = gpu_count(found.gpus)
    if row == found.row:
        rest = "" if found.ready else f", {found.gpus - found.got} in use by jobs that keep them"
        return Reason(ReasonCode.RESERVED, f"waits for {need}: {found.got} held for it{rest}")
    if row not in found.confined or not found.held:
        return None
    name = view.jobs.name(found.row)
    text = f"GPUs are being held for {name}, which waits for {need} and has {found.got} of them so far"
    return Reason(ReasonCode.RESERVED, text)
