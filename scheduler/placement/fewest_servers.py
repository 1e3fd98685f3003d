"""Choice of each job's GPUs, given their number (AFS 4.4).

The first aim is every job on the fewest servers, and at most one job per server that communicates with other servers.
Then as many jobs as possible keep at least one of their GPUs (a job that keeps none migrates). Then no job moves that
needs no change, and as many GPUs as possible stay. So:

* A well-placed job with an unchanged share keeps its GPUs. It moves only if another job cannot be placed well
  otherwise, or if more jobs than this one would lose all of their GPUs instead.
* A job that shrinks keeps GPUs on the fewest servers; its first worker's server is among them if that costs nothing.
* A job that grows takes free GPUs on its server. If these are not enough, the job moves to another server.

Shares that network packing allows (AFS App. E) are placed perfectly on servers of equal size. Other shares are placed
well, not optimally: this is bin packing. A job that could not be placed well is tried again in each decision, and moves
only if that improves the whole. So a placement that has been carried out asks for no further change.

Within a server, a job keeps its GPUs, and its new GPUs are close to them and to each other (`nearness`; ElasticFlow
4.3). A job on several servers stays in one rack if possible: the rack of its GPUs, otherwise the rack with the best fit
(ElasticFlow's fifth layer). No job moves for either reason: closeness only improves a placement, and a move costs more.

Most jobs need no change and are examined once. `largest_first.py` decides how many GPUs of which server the other jobs
get, without regard to which GPUs these are. Here each job then gets GPUs that it has there, then free ones, then those
that other jobs give up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain

import numpy as np

from ...protocol.model import GpuAddress
from ..arrays import Ints
from ..nearness import Near, nearest
from ..sets import elements, some, union
from ..view import Gpus, ServerInView
from .largest_first import MOVED, TOUCHED, Resident, ServerPart, fit

Placements = dict[int, Gpus]


def place(
    servers: Sequence[ServerInView],
    present: Mapping[int, Gpus],
    shares: Ints | Mapping[int, int],
    first: Mapping[int, Gpus] | None = None,
    stay: Collection[int] = (),
) -> Placements:
    """Return a placement for every row with a share. `present`: the GPUs of each job that still exist.

    `first`: the GPU of each job's first worker, as a set of one; the first of a job's GPUs counts as that where it is
    unknown. `stay`: jobs that keep their GPUs if their shares stay the same, even if others are placed worse by that.
    Raises ValueError if the shares do not fit into the cluster.
    """
    wanted = wanted_shares(shares)
    incremental = IncrementalFewestServers(servers, present)
    gone = {row: 0 for row in present if row not in wanted}
    changed = {row: share for row, share in wanted.items() if present.get(row, 0).bit_count() != share}
    incremental.change(gone | changed, first, stay=stay)
    return {row: incremental.gpus[row] for row in wanted}


def addresses(servers: Iterable[ServerInView]) -> tuple[GpuAddress, ...]:
    """Return the GPU address of each bit of a set."""
    return tuple(chain.from_iterable([server.addresses for server in servers]))


def in_order(gpus: Gpus, known: Sequence[GpuAddress], before: Sequence[GpuAddress]) -> tuple[GpuAddress, ...]:
    """Return the set as a tuple in the order of ranks: the GPUs of `before` that stay, in their order, then the others.

    `known`: the `addresses` of the servers of the view.
    """
    found = [known[bit] for bit in elements(gpus)]
    there = set(found)
    stay = [gpu for gpu in before if gpu in there]
    old = set(stay)
    return (*stay, *(gpu for gpu in found if gpu not in old))


class Layout:
    """Positions of the servers' GPUs among the bits."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        ends = list(accumulate(sizes, initial=0))
        self.total = ends[-1]
        self.begins = ends[:-1]
        self.masks = [((1 << size) - 1) << end for size, end in zip(sizes, ends, strict=False)]
        self.server = [server for server, size in enumerate(sizes) for _ in range(size)]  # server of each bit

    @cached_property
    def largest(self) -> list[int]:
        return sorted(self.sizes, reverse=True)

    @cached_property
    def _room(self) -> list[int]:
        return list(accumulate(self.largest))

    def fewest(self, share: int) -> int:
        """Return the least number of servers that a share needs."""
        return bisect_left(self._room, share) + 1

    def counts(self, gpus: Gpus) -> Mapping[int, int]:
        """Return the number of GPUs by server."""
        return _counts(self, gpus)


@dataclass(frozen=True)
class Map:
    """Distances between GPUs, by server; empty and None where all are equal."""

    near: Mapping[int, Near]
    racks: Sequence[int] | None  # rack number of each server

    @classmethod
    def of(cls, servers: Sequence[ServerInView]) -> Map:
        near = {number: server.near for number, server in enumerate(servers) if server.near}
        names = [server.rack for server in servers]
        if names.count(names[0] if names else "") == len(names):
            return cls(near, None)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return cls(near, [numbers[name] for name in names])


@lru_cache(maxsize=16)
def layout_of(sizes: tuple[int, ...]) -> Layout:
    """Return one shared layout for all decisions on servers of these sizes."""
    return Layout(sizes)


@lru_cache(maxsize=2**16)
def _counts(layout: Layout, gpus: Gpus) -> Mapping[int, int]:
    """Return the number of GPUs by server. Cached, because most jobs keep their GPUs from one decision to the next."""
    found = {}
    while gpus:
        server = layout.server[(gpus & -gpus).bit_length() - 1]
        found[server] = (gpus & layout.masks[server]).bit_count()
        gpus &= ~layout.masks[server]
    return found


class IncrementalFewestServers:
    """Placements from one decision to the next: the cost of a decision depends on the jobs that change, not on all
    jobs.

    Jobs are numbers in the order of submission. Most jobs are *settled* and stay without examination. *Restless* jobs
    are examined: those with changed shares, and those on several servers that are not on the fewest or share a server
    with an earlier such job.
    """

    def __init__(self, servers: Sequence[ServerInView], present: Mapping[int, Gpus] | None = None) -> None:
        """Start with the placements `present`; None: no job is placed."""
        self._layout = layout = layout_of(tuple([len(server.gpus) for server in servers]))
        self._map = Map.of(servers)
        self.gpus: Placements = {}
        self._idle: Gpus = (1 << layout.total) - 1
        self._holes = layout.sizes.copy()
        self._here: list[set[int]] = [set() for _ in layout.sizes]  # by server: the jobs on it
        self._spread: dict[int, Mapping[int, int]] = {}  # GPUs by server, of jobs on several servers
        self._tried = False  # nothing has changed since the last attempt to improve restless jobs
        if present:
            self._put_all({job: gpus for job, gpus in present.items() if gpus})

    def _put_all(self, placed: Placements) -> None:
        """Place jobs as `put` does, faster where most jobs are on one server."""
        server_of, masks, holes, here = self._layout.server, self._layout.masks, self._holes, self._here
        on_several = []
        for job, gpus in placed.items():
            server = server_of[gpus.bit_length() - 1]
            if gpus & masks[server] == gpus:
                holes[server] -= gpus.bit_count()
                here[server].add(job)
            else:
                on_several.append(job)
        several = {job: placed.pop(job) for job in on_several}
        self.gpus |= placed
        self._idle &= ~union(placed.values())
        for job, gpus in several.items():
            self.put(job, gpus)

    def put(self, job: int, gpus: Gpus) -> None:
        """Place a job without GPUs on these GPUs, which must be free."""
        layout = self._layout
        self.gpus[job] = gpus
        self._idle &= ~gpus
        server = layout.server[gpus.bit_length() - 1]
        if not gpus & ~layout.masks[server]:
            self._holes[server] -= gpus.bit_count()
            self._here[server].add(job)
            return
        self._spread[job] = used = layout.counts(gpus)
        for server, count in used.items():
            self._holes[server] -= count
            self._here[server].add(job)

    def leave(self, job: int) -> Gpus:
        """Remove a job, and return the GPUs that it had."""
        layout = self._layout
        gpus = self.gpus.pop(job)
        self._idle |= gpus
        self._tried = False
        used = self._spread.pop(job, None)
        if used is None:
            server = layout.server[gpus.bit_length() - 1]
            self._holes[server] += gpus.bit_count()
            self._here[server].discard(job)
            return gpus
        for server, count in used.items():
            self._holes[server] += count
            self._here[server].discard(job)
        return gpus

    def change(
        self, shares: Mapping[int, int], first: Mapping[int, Gpus] | None = None, *, stay: Collection[int] = ()
    ) -> dict[int, tuple[Gpus, Gpus]]:
        """Place jobs with changed shares (0: the job gets none).

        Return the GPUs before and after, of all jobs that now have others.

        `first`, `stay` and errors as for `place`. An imperfect placement is tried again even if no share changes; the
        result counts only if it is better.
        """
        if not shares and (self._tried or not self._spread):
            return {}
        self._tried = False
        idle = self._idle
        before = self._leave_all([job for job, share in shares.items() if not share and job in self.gpus])
        changed = {job: share for job, share in shares.items() if share}
        more = sum(changed.values()) - sum([self.gpus[job].bit_count() for job in changed if job in self.gpus])
        if more > self._idle.bit_count():
            wanted = self._layout.total - self._idle.bit_count() + more
            raise ValueError(f"{wanted} GPUs do not fit into {self._layout.total}")
        if changed and not self._spread and not self._map.near and not first:
            moved = self._into_room(changed, idle)
            if moved is not None:
                before |= moved
                changed = {}
        while (changed or self._spread) and (attempt := _Attempt(self, changed, first or {}, stay)).restless:
            placed, perfect = attempt.settle(idle)
            if not changed and self._flaws(placed) >= self._flaws({}):
                self._tried = not stay
                break
            before = self._move(placed) | before
            if perfect:
                break
            changed, idle = {}, self._idle
        return {job: (had, has) for job, had in before.items() if had != (has := self.gpus.get(job, 0))}

    def _move(self, placed: Placements) -> Placements:
        """Move jobs to these GPUs, and return the GPUs that they had."""
        before = {job: self.leave(job) if job in self.gpus else 0 for job in placed}
        for job, gpus in placed.items():
            self.put(job, gpus)
        return before

    def _leave_all(self, jobs: Sequence[int]) -> Placements:
        """Remove jobs as `leave` does, faster where most jobs are on one server. Return the GPUs that they had."""
        server_of, holes, here, spread = self._layout.server, self._holes, self._here, self._spread
        before: Placements = {}
        for job in jobs:
            if job in spread:
                before[job] = self.leave(job)
                continue
            before[job] = gpus = self.gpus.pop(job)
            self._idle |= gpus
            server = server_of[gpus.bit_length() - 1]
            holes[server] += gpus.bit_count()
            here[server].discard(job)
        return before

    def _into_room(self, changed: Mapping[int, int], idle: Gpus) -> Placements | None:
        """Place the changed jobs by a faster rule with the same result as `_Attempt`. Return the GPUs that the jobs had before;
        None, with nothing changed, if the rule does not apply.

        The rule applies if all jobs are on one server each, those with GPUs can stay on theirs, and each other job finds a
        hole. Where jobs take turns, this is nearly the whole cost of placing, so nothing is looked up twice. `idle`: as
        for `_Attempt.settle`.
        """
        layout, holes, free = self._layout, self._holes.copy(), self._idle
        server_of, masks, largest = layout.server, layout.masks, layout.largest[0]
        before: Placements = {}
        kept: Placements = {}
        homes: dict[int, int] = {}
        new: list[tuple[int, int]] = []
        for job, share in sorted(changed.items()):
            if share > largest:
                return None
            before[job] = has = self.gpus.get(job, 0)
            kept[job] = has
            if not has:
                new.append((-share, job))
                continue
            homes[job] = server = server_of[has.bit_length() - 1]
            holes[server] += (count := has.bit_count()) - share
            if holes[server] < 0:
                return None
            if count > share:
                kept[job] = some(share, has)
                free |= has & ~kept[job]
        new.sort()
        of_size = [0] * (largest + 1)  # number of holes by size in GPUs
        for hole in holes:
            of_size[hole] += 1
        for minus_share, job in new:
            tightest = -minus_share
            while tightest <= largest and not of_size[tightest]:
                tightest += 1
            if tightest > largest:
                return None
            homes[job] = server = holes.index(tightest)
            left = holes[server] = tightest + minus_share
            of_size[tightest] -= 1
            of_size[left] += 1
        for job, own in kept.items():
            need = changed[job] - own.bit_count()
            server = homes[job]
            if need == 1:
                more = idle & masks[server] or free & masks[server]
                more &= -more
            elif need:
                more = some(need, idle & masks[server], free & masks[server])
            else:
                more = 0
            free &= ~more
            idle &= ~more
            self.gpus[job] = own | more
        for _, job in new:
            self._here[homes[job]].add(job)
        self._holes, self._idle = holes, free
        return before

    def _flaws(self, placed: Placements) -> int:
        """Count the servers that jobs use beyond the fewest, plus the jobs beyond one on a server that communicate with
        other servers. The jobs `placed` count with these other GPUs."""
        layout = self._layout
        spread = [used for job, used in self._spread.items() if job not in placed]
        spread += [used for gpus in placed.values() if len(used := layout.counts(gpus)) > 1]
        remote = [server for used in spread for server in used]
        beyond = sum([len(used) - layout.fewest(sum(used.values())) for used in spread])
        return beyond + len(remote) - len(set(remote))


class _Attempt:
    """One attempt to place the restless jobs."""

    def __init__(
        self,
        incremental: IncrementalFewestServers,
        changed: Mapping[int, int],
        first: Mapping[int, Gpus],
        stay: Collection[int],
    ) -> None:
        """`changed`: the new shares of jobs with a different number of GPUs. `stay`: other jobs that must not move."""
        self._placement, self._changed, self._first = incremental, changed, first
        self._layout, self._map = incremental._layout, incremental._map
        self._present = incremental.gpus
        self._stay = frozenset(stay)
        self.restless = [*changed]
        self._remote: set[int] = set()
        for job in sorted(incremental._spread):
            if job in changed:
                continue
            used = incremental._spread[job]
            if job in self._stay:
                self._remote.update(used)
            elif len(used) > self._layout.fewest(self._present[job].bit_count()) or self._remote & used.keys():
                self.restless.append(job)
            else:
                self._remote.update(used)
        self.restless.sort()
        self._restless_set = set(self.restless)

    def _has(self, row: int) -> Mapping[int, int]:
        gpus = self._present.get(row, 0)
        return self._layout.counts(gpus) if gpus else {}

    def settle(self, idle: Gpus) -> tuple[Placements, bool]:
        """Return the GPUs of the jobs that are restless or have to move, and whether the result is perfect.

        Perfect: all jobs are on the fewest servers, and no two jobs that communicate with other servers share one.
        `idle`: GPUs that no job has had.
        """
        remote = frozenset(self._remote)
        self._holes = holes = self._placement._holes.copy()
        for row in self.restless:
            for server, gpus in self._has(row).items():
                holes[server] += gpus
        pieces = [piece for row in self.restless for piece in self._pieces(row)]
        fitted = fit(holes, pieces, self._residents, self._has, remote, self._map.racks)
        return self._choose(fitted.amounts, idle), fitted.perfect

    def _pieces(self, row: int) -> list[ServerPart]:
        """Split a job into pieces, each with the server where it would stay."""
        layout, own = self._layout, self._has(row)
        share = self._changed.get(row) or self._present[row].bit_count()
        if share <= layout.largest[0] and len(own) <= 1:
            home = next((server for server in own if layout.sizes[server] >= share), None)
            return [ServerPart(row, share, own, home)]
        has = self._present.get(row, 0)
        lead = self._first.get(row, 0) or has & -has
        homes = sorted(own, key=lambda s: (-min(own[s], share), not lead & layout.masks[s], s))
        whole = share <= layout.largest[0]
        pieces = []
        for gpus in [share] if whole else self._parts(share, own, homes):
            home = next((s for s in homes if layout.sizes[s] >= gpus and (whole or s not in self._remote)), None)
            if home is not None:
                homes.remove(home)
            if home is not None and not whole:
                self._remote.add(home)
            pieces.append(ServerPart(row, gpus, own, home, spread=not whole))
        return pieces

    def _parts(self, share: int, own: Mapping[int, int], homes: Sequence[int]) -> list[int]:
        """Split a share too large for a server: as on the job's servers if they suffice, else into the largest parts."""
        layout = self._layout
        here = homes[: layout.fewest(share)]
        grown = [self._holes[server] for server in here]  # by server: GPUs of the job and free ones
        if len(here) < layout.fewest(share) or sum(grown) < share:
            return _cut(share, layout.largest)
        parts = []
        for server in here:
            parts.append(min(own[server], share))
            share -= parts[-1]
        for part, most in enumerate(grown):
            more = min(share, most - parts[part])
            parts[part] += more
            share -= more
        return [part for part in parts if part]

    def _residents(self, server: int) -> list[Resident]:
        """Return the settled jobs on a server that may move."""
        restless, spread = self._restless_set | self._stay, self._placement._spread
        residents: list[Resident] = []
        for row in self._placement._here[server] - restless:
            if row in spread:
                gpus = spread[row][server]
                residents.append((TOUCHED + gpus, row, gpus, True))
            else:
                share = self._present[row].bit_count()
                residents.append((MOVED + TOUCHED + share, row, share, False))
        return residents

    def _choose(self, amounts: Mapping[int, Mapping[int, int]], idle: Gpus) -> Placements:
        """Choose the individual GPUs of each job, given its number on each server."""
        masks, near = self._layout.masks, self._map.near
        placed: Placements = {}
        free = self._placement._idle | union(self._present.get(row, 0) for row in amounts)
        for row, amount in amounts.items():
            has, lead = self._present.get(row, 0), self._first.get(row, 0)
            placed[row] = 0
            if not has:
                continue
            for server, gpus in amount.items():
                own = has & masks[server]
                if server in near and own.bit_count() > gpus:
                    placed[row] |= self._kept(server, gpus, own, own & lead)
                elif own:
                    placed[row] |= some(gpus, own & lead, own)
            free &= ~placed[row]
        missing = [
            (row, server, count)
            for row, amount in amounts.items()
            for server, gpus in amount.items()
            if (count := gpus - (placed[row] & masks[server]).bit_count())
        ]
        if near:  # the job that needs most GPUs chooses first among close ones
            missing.sort(key=lambda one: -one[2] if one[1] in near else 0)
        for row, server, count in missing:
            mask = masks[server]
            if server in near:
                more = self._nearest(server, count, idle & mask, free & mask, placed[row] & mask)
            else:
                more = some(count, idle & mask, free & mask)
            placed[row] |= more
            free &= ~more
            idle &= ~more
        return placed

    def _kept(self, server: int, count: int, own: Gpus, lead: Gpus) -> Gpus:
        """Choose `count` of a job's own GPUs that are close to each other; the first worker's GPU is among them if it
        is on the server."""
        near, begin = self._map.near[server], self._layout.begins[server]
        rest = count - lead.bit_count()
        if not rest:
            return lead
        chosen = nearest(near, self._layout.sizes[server], rest, (own & ~lead) >> begin, lead >> begin)[1]
        return lead | chosen << begin

    def _nearest(self, server: int, count: int, idle: Gpus, free: Gpus, own: Gpus) -> Gpus:
        """Choose `count` close GPUs: idle ones, unless GPUs that other jobs give up are closer."""
        near, begin, size = self._map.near[server], self._layout.begins[server], self._layout.sizes[server]
        distance, chosen = nearest(near, size, count, free >> begin, own >> begin)
        if idle.bit_count() >= count:
            without, unused = nearest(near, size, count, idle >> begin, own >> begin)
            if without <= distance:
                chosen = unused
        return chosen << begin


def wanted_shares(shares: Ints | Mapping[int, int]) -> dict[int, int]:
    """Return the shares by row, without zeros."""
    if isinstance(shares, np.ndarray):
        rows = np.flatnonzero(shares != 0)
        return dict(zip(rows.tolist(), shares[rows].tolist(), strict=True))
    return {row: share for row, share in sorted(shares.items()) if share}


def _cut(share: int, sizes: Iterable[int]) -> list[int]:
    """Cut a share into pieces as large as the servers, the largest first."""
    pieces = []
    for size in sizes:
        pieces.append(min(size, share))
        share -= pieces[-1]
        if not share:
            break
    return pieces
