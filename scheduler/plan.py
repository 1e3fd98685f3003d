"""Changes from the present placements to a decision, in an executable order: GPUs are given back before they are taken.

A plan costs no job a restart: only a job that is to have no GPUs at all is stopped. The exception could be jobs that
exchange GPUs, so that each waits for the other. There are three ways out, in this order:

1. *Other names.* Jobs of one share may exchange equivalent places (as many GPUs on as many servers). Then no job needs
   to move: the job that holds the GPUs planned for another one keeps them.
2. *Giving way.* A job of the circle first keeps only its final GPUs; or moves aside, to idle GPUs; or shrinks, though
   not below its minimum, to a part of its GPUs. It does so only if that frees GPUs that the others wait for, and only
   if some job gets its GPUs by it in the end.
3. *Making do.* A job that cannot leave the circle like that gets its share where it is, completed by idle GPUs. There
   are enough: all shares together fit into the cluster, and every job outside of the circle has exactly its planned
   GPUs. The placement is worse than decided, until a later decision finds room to mend it.

An order to a job contains its destination, not the way there. So a step aside is an order of its own, and changes that
build on it have to wait for a later decision (`at_once`). A step that keeps or takes only the job's final GPUs needs no
order of its own: a job that can have only a part of its new GPUs takes that first (`controller/jobs/generations.py`).

A decision may come while an earlier one is still being carried out. Then the jobs' processes are not yet where the plan
assumes them, and three steps of the plan may be an exchange for the processes. Such a change waits too (`at_once`). If
a lost server turns a plan into an exchange, the jobs that wait for each other stay where they are (`standstill`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .host_capacity import Room
from .pipeline import Decision
from .placement.fewest_servers import layout_of
from .sets import some, union
from .view import ClusterView, Gpus


class ChangeKind(enum.Enum):
    """Kind of a job's change. Changes are ordered by kind, but each comes after those that free its GPUs."""

    STOP = "stop"
    RESIZE = "resize"
    MIGRATE = "migrate"  # none of its GPUs stays
    START = "start"


@dataclass(frozen=True)
class Change:
    """New GPUs of the job in a row of the view; empty: the job gives all its GPUs back."""

    kind: ChangeKind
    row: int
    gpus: Gpus


def plan(view: ClusterView, decision: Decision) -> tuple[Change, ...]:
    """Return the changes from the present placements to the decided shares, only for jobs with a changed set of GPUs.

    A job may have several changes, one after the other.
    """
    order = list(ChangeKind)
    present = view.placements
    wanted = _under_other_names(view, decision.placements)
    shares = view.jobs.share.tolist()
    waiting: list[tuple[tuple[int, bool, int], Change]] = []
    for row in sorted({*present, *wanted}):
        has, wants = present.get(row, 0), wanted.get(row, 0)
        share = shares[row] if row in present else 0
        if has == wants and share == has.bit_count():  # otherwise some of its GPUs are gone
            continue
        change = Change(_kind(share > 0, has, wants), row, wants)
        takes = bool(wants & ~has)  # a job with fewer GPUs than before may take new ones in place of lost ones
        waiting.append(((order.index(change.kind), takes, wants.bit_count() - share), change))
    waiting.sort(key=lambda entry: entry[0])
    turns = _Turns(view)
    turns.take([change for _, change in waiting])
    return tuple(turns.done)


def at_once(
    present: Mapping[int, Gpus], changes: Sequence[Change], held: Mapping[int, Gpus], room: Room | None = None
) -> tuple[tuple[Change, ...], bool]:
    """Return the plan's changes that can be ordered together now, and whether others wait for a later decision.

    `held`: where the processes of each job are, or are ordered to be. Ordered changes leave every GPU to one job. A job
    that steps aside gets no further order before it has arrived. No job gets GPUs that such a job only then leaves, or
    is sent to GPUs that others cannot leave.

    `room`: cores and memory of the servers, which must suffice for old and new processes at the same time; None: they
    are not counted.
    """

    def fits(row: int, gpus: Gpus, targets: Mapping[int, Gpus]) -> bool:
        return room is None or room.allows(row, targets.get(row, 0), gpus, held, targets)

    ordered, late, targets = _apart(present, changes, fits)
    if standstill(held, targets):
        ordered, late, _ = _apart(
            present,
            changes,
            lambda row, gpus, targets: fits(row, gpus, targets) and not standstill(held, {**targets, row: gpus}),
        )
    return ordered, late


def _apart(
    present: Mapping[int, Gpus], changes: Iterable[Change], possible: Callable[[int, Gpus, Mapping[int, Gpus]], bool]
) -> tuple[tuple[Change, ...], bool, Mapping[int, Gpus]]:
    targets = dict(present)
    used = union(targets.values())
    ordered: list[Change] = []
    told: set[int] = set()
    late: set[int] = set()
    for change in changes:
        row, before = change.row, targets.get(change.row, 0)
        aside = row in told and before & ~change.gpus
        if row in late or aside or change.gpus & used & ~before or not possible(row, change.gpus, targets):
            late.add(row)
            continue
        used = used & ~before | change.gpus
        targets[row] = change.gpus
        told.add(row)
        ordered.append(change)
    return tuple(ordered), bool(late), targets


def standstill(held: Mapping[int, Gpus], targets: Mapping[int, Gpus]) -> frozenset[int]:
    """Return the jobs that never get to their targets, because they wait for each other's GPUs.

    A job with processes and a target leaves its other GPUs when it can be on some GPU of its target; until then it
    stays where it is (`held`, by row).
    """
    leaving = {
        row: gpus
        for row, gpus in held.items()
        if (target := targets.get(row)) and gpus != target and gpus & ~target  # most jobs stay where they are
    }
    while leaving:
        once = twice = 0
        for gpus in leaving.values():
            twice |= once & gpus
            once |= gpus
        gone = [row for row, gpus in leaving.items() if targets[row] & ~(twice | once & ~gpus)]
        if not gone:
            break
        for row in gone:
            del leaving[row]
    return frozenset(leaving)


def _under_other_names(view: ClusterView, placements: Mapping[int, Gpus]) -> dict[int, Gpus]:
    """Return the placements after exchanges of names: a job keeps its GPUs if the job planned for them can equally take
    its new ones.

    The other job loses nothing: it has none of these GPUs now, since the first job holds all of them.
    """
    wanted = dict(placements)
    moving = [row for row in sorted(wanted) if wanted[row] != view.placements.get(row, 0)]
    owner = {gpus: row for row, gpus in view.placements.items() if gpus and gpus != wanted.get(row, 0)}
    servers = _servers(view) if moving else []
    for row in moving:
        while (other := owner.get(wanted[row], row)) != row and _alike(wanted[row], wanted.get(other, 0), servers):
            if view.limit_of is not None and not (
                view.needs.get(row) == view.needs.get(other)
                and view.usable(row, wanted[other])
                and view.usable(other, wanted[row])
                and not view.per_server(row)
            ):
                break
            wanted[row], wanted[other] = wanted[other], wanted[row]
    return wanted


def _alike(a: Gpus, b: Gpus, servers: Sequence[Gpus]) -> bool:
    """Return whether both sets have as many GPUs on as many servers."""
    if a.bit_count() != b.bit_count():
        return False
    return sorted((a & server).bit_count() for server in servers) == sorted(
        (b & server).bit_count() for server in servers
    )


class _Turns:
    """State while a plan is being carried out: each job's GPUs, and the changes so far."""

    def __init__(self, view: ClusterView) -> None:
        self.done: list[Change] = []
        self._view = view
        self._held = dict(view.placements)
        self._idle = (1 << view.total_gpus) - 1 & ~union(self._held.values())

    def take(self, waiting: list[Change]) -> None:
        """Carry out the changes, each after those that free its GPUs."""
        retreat = self._state()  # the state after the last change that led a job to its goal
        while waiting:
            blocked = []
            for change in waiting:
                if self._is_free(change):
                    self._carry_out(change.row, change.gpus)
                else:
                    blocked.append(change)
            if len(blocked) < len(waiting):
                retreat = self._state()
            elif not self._give_way(blocked):
                self._return_to(retreat)
                self._make_do(blocked)
                return
            waiting = blocked

    def _is_free(self, change: Change) -> bool:
        return not change.gpus & ~self._held.get(change.row, 0) & ~self._idle

    def _carry_out(self, row: int, gpus: Gpus) -> None:
        before = self._held.get(row, 0)
        runs = int(self._view.jobs.share[row]) > 0
        self._idle = (self._idle | before) & ~gpus
        self._held[row] = gpus
        self.done.append(Change(_kind(runs, before, gpus), row, gpus))

    def _state(self) -> tuple[int, dict[int, Gpus], Gpus]:
        return len(self.done), dict(self._held), self._idle

    def _return_to(self, state: tuple[int, dict[int, Gpus], Gpus]) -> None:
        count, self._held, self._idle = state
        del self.done[count:]

    def _give_way(self, blocked: Sequence[Change]) -> bool:
        """Let one of the jobs that wait for each other free GPUs that others wait for. Return False if none can.

        Preferred are a job for which that is a step to its goal, then one that need not shrink for it, then one that
        keeps GPUs; of several the one submitted last. The process ends: each time fewer GPUs are in another job's way,
        and no job gives back its final GPUs.
        """
        best: tuple[tuple[int, int, bool, int], int, Gpus] | None = None
        for change in blocked:
            has = self._held.get(change.row, 0)
            others = union(other.gpus for other in blocked if other is not change)
            for rank, gpus in self._ways(change, others):
                if has & others & ~gpus:
                    lost = change.gpus.bit_count() - gpus.bit_count()
                    cost = (rank, lost, not has & gpus, -change.row)
                    best = min(best, (cost, change.row, gpus)) if best is not None else (cost, change.row, gpus)
        if best is None:
            return False
        self._carry_out(best[1], best[2])
        return True

    def _ways(self, change: Change, others: Gpus) -> Iterator[tuple[int, Gpus]]:
        """Yield sets of GPUs with which a job could make do for now, with their ranks (0: best).

        `others`: GPUs that its circle waits for.
        """
        has, wants = self._held.get(change.row, 0), change.gpus
        if not has or self._view.per_server(change.row):  # the job cannot run on other numbers for a while
            return
        usable = self._view.usable(change.row, wants)
        least = max(1, min(int(self._view.jobs.min_gpus[change.row]), wants.bit_count(), has.bit_count()))
        goal = wants & (has | self._idle)
        if goal.bit_count() >= least:
            yield 0, goal
        aside = some(wants.bit_count(), goal, has & ~others & usable, self._idle & ~others & usable)
        if aside.bit_count() >= least:
            yield 1, aside
        else:
            yield 2, some(least, aside, has & usable or has)

    def _make_do(self, blocked: Sequence[Change]) -> None:
        """Give the jobs that still wait their shares on their own and on idle GPUs, without an exchange.

        Jobs that give back come first, then jobs submitted first. Where not every job may use every GPU, a share may
        not be available: then a job keeps its GPUs for now.
        """
        for change in sorted(blocked, key=lambda c: (c.gpus.bit_count() > self._held.get(c.row, 0).bit_count(), c.row)):
            row, has, share = change.row, self._held.get(change.row, 0), change.gpus.bit_count()
            if self._view.per_server(row):
                continue
            usable = self._view.usable(row, change.gpus)
            gpus = some(share, has & change.gpus, has & usable or has)
            if not gpus & ~usable:
                room = self._room(has, share - gpus.bit_count())
                gpus = some(share, gpus, self._idle & change.gpus, *[hole & usable for hole in room])
            assert gpus.bit_count() == share or self._view.limit_of is not None, "all shares together fit"
            if gpus.bit_count() < max(1, min(share, int(self._view.jobs.min_gpus[row]))):
                continue
            if gpus != has or share != int(self._view.jobs.share[row]):
                self._carry_out(row, gpus)

    def _room(self, has: Gpus, more: int) -> list[Gpus]:
        """Return idle GPUs by server: first the job's servers, then the tightest sufficient holes, then the largest."""
        holes = [(server & self._idle, server) for server in _servers(self._view)]

        def distance(hole: Gpus, server: Gpus) -> tuple[bool, bool, int]:
            size = hole.bit_count()
            return not has & server, size < more, size if size >= more else -size

        return [hole for hole, _ in sorted(holes, key=lambda pair: distance(*pair))]


def _servers(view: ClusterView) -> Sequence[Gpus]:
    """Return the GPUs of each server."""
    return layout_of(tuple(len(server.gpus) for server in view.servers)).masks


def _kind(runs: bool, before: Gpus, after: Gpus) -> ChangeKind:
    if not after:
        return ChangeKind.STOP
    if not runs:
        return ChangeKind.START
    return ChangeKind.RESIZE if before & after else ChangeKind.MIGRATE
