"""On which servers jobs get their GPUs, counted only: pieces of jobs into servers with so many free ones.

Theory of operation
-------------------
A job that fits into one server is one piece; a larger one fills whole servers, and what is left is another piece. At first every
piece stays where its job has GPUs, even if that is too much for a server; new ones are loose. Loose pieces are put, the largest
first, each into the tightest hole that it fits into. With packed shares a hole that a piece does not fill can always be filled by
smaller ones, so it does not matter for what comes later which hole is taken (first fit decreasing of AFS App. E, Prop. 1).

Where a server is too full, or a piece fits nowhere, others have to give way: those of any size in the first case, smaller
ones in the second. What leaves becomes loose. Each minimal set of pieces whose leaving helps is tried, the cheapest first,
until nothing cheaper can be had or `TRIES` are used up. With packed shares the very first attempt leads to a perfect
placement, since whoever gives way is smaller. With other shares this is bin packing: what fits nowhere is spread over the
largest holes.

Outcomes are compared by, in this order: servers too many; jobs that keep none of their GPUs; jobs that move although they need
no change; GPUs that are not kept. So a job that is placed well does not move to let another one keep more of its GPUs, only where
one cannot be placed well otherwise, or where more jobs than it would have to move instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SPREAD, MOVED, TOUCHED = 2**60, 2**40, 2**20  # what counts more than any number of what comes after it
TRIES = 2048  # servers looked at, over all attempts but the first

Amounts = dict[int, dict[int, int]]  # by job and server: GPUs


@dataclass(eq=False, slots=True)
class Piece:
    """What a job has, or is to have, on one server. Not frozen only because that takes twice the time to make."""

    job: int
    gpus: int
    home: int | None = None  # the server where it stays if it can
    kept: int = 0  # how many of the job's GPUs it keeps there
    settled: bool = False  # its job needs no change
    spread: bool = False  # its job talks to other servers
    elsewhere: bool = False  # its job has GPUs on other servers, too

    @property
    def charge(self) -> int:
        """What it costs at least if it leaves its home: as much as surely is lost."""
        if self.elsewhere:
            return TOUCHED + self.kept if self.settled else 0
        return MOVED + (TOUCHED if self.settled else 0) + self.kept


@dataclass(frozen=True)
class Fit:
    """GPUs by job and server, of jobs that were not settled or had to move. `perfect`: on the fewest servers, no conflicts."""

    amounts: Amounts
    perfect: bool


def fit(
    holes: Sequence[int],
    pieces: Sequence[Piece],
    has: Callable[[int], Mapping[int, int]],
    settled: Callable[[int], Sequence[Piece]],
    remote: frozenset[int],
) -> Fit:
    """Put `pieces` into `holes`, which is what settled jobs leave free of each server.

    `has`: how many GPUs a job has on which servers; `settled`: the pieces of settled jobs on a server, asked for where one may
    have to move; `remote`: where settled jobs talk to other servers. Raises ValueError if there is not enough room for all.
    """
    search = _Search(pieces, has, settled, remote, len(holes))
    left = list(holes)
    for piece in pieces:
        if piece.home is not None:
            left[piece.home] -= piece.gpus
    search.explore(left, [piece for piece in pieces if piece.home is None])
    return Fit(search.amounts, search.cost < SPREAD)


@dataclass
class _Search:
    """The best outcome so far."""

    pieces: Sequence[Piece]
    has: Callable[[int], Mapping[int, int]]
    settled: Callable[[int], Sequence[Piece]]
    remote: frozenset[int]
    servers: int
    cost: int = 2**100
    amounts: Amounts = field(default_factory=dict)
    tries: int = 0
    turned: bool = False  # the first attempt has come to its end, which takes as many tries as it takes
    residents: dict[int, list[Piece]] = field(default_factory=dict)  # by server, as they were asked for

    def explore(self, holes: list[int], loose: list[Piece]) -> None:
        """All outcomes where at least these pieces are loose, depth first."""
        waiting: list[tuple[int, list[int], list[Piece], list[Piece]]] = [(0, holes, loose, [])]
        while waiting:
            paid, holes, loose, leaving = waiting.pop()
            if paid >= self.cost or (self.turned and self.tries > TRIES):
                continue
            if leaving:
                holes, loose = _without(leaving, holes), loose + leaving
            ways = self._try(holes, loose)
            ways.sort(key=lambda way: (way[0], [-piece.job for piece in way[1]]), reverse=True)
            waiting += [(paid + charge, holes, loose, more) for charge, more in ways]

    def _try(self, holes: list[int], loose: list[Piece]) -> list[tuple[int, list[Piece]]]:
        """What could leave from here, and its charge. Notes the outcome if no server is too full."""
        self.tries += self.servers
        least = min(holes)
        if least < 0:
            return list(_ways(self._can_leave(holes.index(least), loose), -least))
        fitted = _Fitted(self, holes, loose)
        fitted.consider(self)
        ways = self._ways_to_a_hole(holes, loose, fitted.homeless[0].gpus) if fitted.homeless else []
        self.turned |= not ways
        return ways

    def _ways_to_a_hole(self, holes: list[int], loose: list[Piece], gpus: int) -> list[tuple[int, list[Piece]]]:
        """Sets of smaller pieces that leave a server, so that one piece more of `gpus` GPUs fits. Servers alike count once."""
        found: dict[tuple[object, ...], tuple[int, list[Piece]]] = {}
        for server, hole in enumerate(holes):
            small = [piece for piece in self._can_leave(server, loose) if piece.gpus < gpus]
            need = gpus - hole % gpus
            if sum(piece.gpus for piece in small) >= need:
                kind = (need, tuple(sorted((piece.gpus, piece.charge) for piece in small)))
                if kind not in found or found[kind][1][0].job < small[0].job:
                    found[kind] = need, small
        return [way for need, small in found.values() for way in _ways(small, need)]

    def _can_leave(self, server: int, loose: list[Piece]) -> list[Piece]:
        return [piece for piece in self.at(server) if piece not in loose]

    def at(self, server: int) -> list[Piece]:
        """All that could leave a server, of the job submitted last first."""
        found = self.residents.get(server)
        if found is None:
            here = (piece for piece in self.pieces if piece.home == server)
            found = self.residents[server] = sorted((*self.settled(server), *here), key=lambda piece: -piece.job)
        return found

    def of_job(self, job: int) -> list[Piece]:
        return [piece for server in self.has(job) for piece in self.at(server) if piece.job == job]


class _Fitted:
    """Loose pieces in holes."""

    def __init__(self, search: _Search, holes: list[int], loose: list[Piece]) -> None:
        self.loose = loose
        self.conflicts = 0  # servers where two jobs talk to others
        self.homeless: list[Piece] = []
        self._holes = holes.copy()
        self._server: dict[Piece, int] = {}
        self._remote = set(search.remote)
        self._remote |= {p.home for p in search.pieces if p.spread and p.home is not None and p not in loose}
        # Of pieces of one size those of spread jobs first: they have to avoid each other, the rest fills what they leave.
        for piece in sorted(loose, key=lambda piece: (-piece.gpus, not piece.spread)):
            self._put(piece, search.has(piece.job))

    def _put(self, piece: Piece, own: Mapping[int, int]) -> None:
        server = self._avoiding_others(piece.gpus, own) if piece.spread else self._tightest(piece.gpus, own)
        if server is None:
            self.homeless.append(piece)
            return
        self._holes[server] -= piece.gpus
        self._server[piece] = server
        if piece.spread:
            self.conflicts += server in self._remote
            self._remote.add(server)

    def _tightest(self, gpus: int, own: Mapping[int, int]) -> int | None:
        """The server with the tightest hole that is large enough, one where the job has GPUs if there is any; else None."""
        holes = self._holes
        at_home = [(holes[server], server) for server in own if holes[server] >= gpus]
        if at_home:
            return min(at_home)[1]
        size = next((size for size in range(gpus, max(holes) + 1) if size in holes), None)
        return holes.index(size) if size is not None else None

    def _avoiding_others(self, gpus: int, own: Mapping[int, int]) -> int | None:
        """The same, but rather one where no other job talks to other servers."""
        remote = self._remote
        fitting = [(s in remote, s not in own, hole, s) for s, hole in enumerate(self._holes) if hole >= gpus]
        return min(fitting)[3] if fitting else None

    def consider(self, search: _Search) -> None:
        """Is this the best outcome so far? What fits nowhere is spread."""
        amounts: Amounts = {}
        cost = SPREAD * self.conflicts
        known = {piece.job for piece in search.pieces}
        moved = {piece.job: None for piece in self.loose if piece.job not in known}
        for piece in (*search.pieces, *(piece for job in moved for piece in search.of_job(job))):
            server = self._server.get(piece, piece.home) if piece not in self.homeless else None
            if server is not None:
                amount = amounts.setdefault(piece.job, {})
                amount[server] = amount.get(server, 0) + piece.gpus
        for piece in self.homeless:
            cost += SPREAD * self._spread(piece, search.has(piece.job), amounts.setdefault(piece.job, {}))
        for job, amount in amounts.items():
            own = search.has(job)
            kept = sum(min(gpus, own.get(server, 0)) for server, gpus in amount.items())
            cost += MOVED if own and not kept else 0
            cost += min(sum(amount.values()), sum(own.values())) - kept + (TOUCHED if job in moved else 0)
        if cost < search.cost:
            search.cost, search.amounts = cost, amounts

    def _spread(self, piece: Piece, own: Mapping[int, int], amount: dict[int, int]) -> int:
        """Over the largest holes; of equal ones those where it has GPUs. How many servers more than one that takes."""
        need, used = piece.gpus, 0
        while need:
            room, _, _, server = max((min(hole, need), s in own, -s, s) for s, hole in enumerate(self._holes))
            if not room:
                raise ValueError(f"{need} GPUs do not fit")
            self._holes[server] -= room
            amount[server] = amount.get(server, 0) + room
            need -= room
            used += 1
        return used - 1


def _without(leaving: list[Piece], holes: list[int]) -> list[int]:
    wider = holes.copy()
    for piece in leaving:
        assert piece.home is not None
        wider[piece.home] += piece.gpus
    return wider


def _ways(pieces: list[Piece], need: int) -> Iterator[tuple[int, list[Piece]]]:
    """Sets of pieces with `need` GPUs in which none is superfluous, and their charge. Of pieces alike the first ones leave."""
    alike: dict[tuple[int, int], list[Piece]] = {}
    for piece in pieces:
        alike.setdefault((-piece.gpus, piece.charge), []).append(piece)
    kinds = [alike[kind] for kind in sorted(alike)]

    def choose(kind: int, need: int) -> Iterator[list[Piece]]:
        if kind == len(kinds):
            return
        gpus = kinds[kind][0].gpus
        for count in range(len(kinds[kind]) + 1):
            chosen = kinds[kind][:count]
            if count * gpus >= need:
                yield chosen
                return
            for others in choose(kind + 1, need - count * gpus):
                yield chosen + others

    for chosen in choose(0, need):
        yield sum(piece.charge for piece in chosen), chosen
