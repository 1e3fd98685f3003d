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

Attempts differ by few pieces. So what could leave a server is worked out once for all attempts in which it is the same
(`_Leavers`), and the price of an outcome is counted for the jobs that have a loose piece; all others cost what they cost at
their homes. No outcome with a server too many is as good as one without, whatever has moved: such ones are only priced if there
is none without. Settled jobs are numbers (`Resident`) until one of them has to be thought of as leaving: of servers alike one is
looked at closely, and in a large cluster most are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

SPREAD, MOVED, TOUCHED = 2**60, 2**40, 2**20  # what counts more than any number of what comes after it
TRIES = 256  # servers looked at, over all attempts but the first; eight times as many do not bring flaws down by a hundredth

Amounts = dict[int, dict[int, int]]  # by job and server: GPUs
Resident = tuple[int, int, bool]  # a settled job on a server: which, its GPUs there, and whether it has GPUs elsewhere
_Part = tuple[int, int]  # server, and GPUs there
_Kind = tuple[tuple[int, int], ...]  # GPUs and charges of what could leave a server
_Way = tuple[int, list[int], list["Piece"]]  # what leaves, last; before it the charge, and minus the jobs that it is of


@dataclass(eq=False, slots=True)
class Piece:
    """What a job has, or is to have, on one server. Not frozen only because that takes twice the time to make."""

    job: int
    gpus: int
    own: Mapping[int, int]  # how many GPUs its job has on which servers
    home: int | None = None  # the server where it stays if it can
    kept: int = 0  # how many of the job's GPUs it keeps there
    settled: bool = False  # its job needs no change
    spread: bool = False  # its job talks to other servers
    elsewhere: bool = False  # its job has GPUs on other servers, too

    @property
    def charge(self) -> int:
        """What it costs at least if it leaves its home: as much as surely is lost."""
        if self.settled:
            return _charge(self.kept, self.elsewhere)
        return 0 if self.elsewhere else MOVED + self.kept


def _charge(gpus: int, elsewhere: bool) -> int:
    """What it costs at least if a settled job leaves a server."""
    return TOUCHED + gpus if elsewhere else MOVED + TOUCHED + gpus


@dataclass(frozen=True)
class Fit:
    """GPUs by job and server, of jobs that were not settled or had to move. `perfect`: on the fewest servers, no conflicts."""

    amounts: Amounts
    perfect: bool


def fit(
    holes: Sequence[int],
    pieces: Sequence[Piece],
    settled: Callable[[int], Sequence[Resident]],
    own: Callable[[int], Mapping[int, int]],
    remote: frozenset[int],
) -> Fit:
    """Put `pieces` into `holes`, which is what settled jobs leave free of each server.

    `settled`: the settled jobs on a server, asked for where one may have to move; `own`: how many GPUs such a job has on which
    servers; `remote`: where settled jobs talk to other servers. Raises ValueError if there is not enough room for all.
    """
    search = _Search(pieces, settled, own, remote)
    left = list(holes)
    for piece in pieces:
        if piece.home is not None:
            left[piece.home] -= piece.gpus
    search.explore(left, [piece for piece in pieces if piece.home is None])
    search.settle_for_less()
    return Fit(search.amounts, search.cost < SPREAD)


class _Search:
    """The best outcome so far, and what is known about all of them."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        settled: Callable[[int], Sequence[Resident]],
        own: Callable[[int], Mapping[int, int]],
        remote: frozenset[int],
    ) -> None:
        self.pieces = pieces
        self.cost = 2**100
        self.amounts: Amounts = {}
        self._imperfect: list[tuple[_Fitted, list[Piece]]] = []  # outcomes that are not priced, with what was loose
        self.remote = remote | {piece.home for piece in pieces if piece.spread and piece.home is not None}
        self._settled, self._own = settled, own
        self._tries = 0
        self._turned = False  # the first attempt has come to its end, which takes as many tries as it takes
        self._of_job: dict[int, list[Piece]] = {}
        self._homes: dict[int, list[Piece]] = {}  # the pieces that are to stay, by server
        for piece in pieces:
            self._of_job.setdefault(piece.job, []).append(piece)
            if piece.home is not None:
                self._homes.setdefault(piece.home, []).append(piece)
        self._residents: dict[int, list[Piece]] = {}  # by server, as they were asked for
        self._leavers: dict[tuple[int, int, tuple[Piece, ...]], _Leavers] = {}
        self._stock: dict[int, list[tuple[int, int, int]]] = {}  # by the size that is too large: `_could_leave`
        self._kinds: dict[_Kind, int] = {}
        self._at_home = {job: _cost_at_home(own) for job, own in self._of_job.items()}
        self._all_at_home = sum(self._at_home.values())

    def explore(self, holes: list[int], loose: list[Piece]) -> None:
        """All outcomes where at least these pieces are loose, depth first."""
        waiting: list[tuple[int, list[int], list[Piece], list[Piece]]] = [(0, holes, loose, [])]
        while waiting:
            paid, holes, loose, leaving = waiting.pop()
            if paid >= self.cost:
                continue
            if self._turned and self._tries > TRIES:
                return
            if leaving:
                holes, loose = _without(leaving, holes), loose + leaving
            ways = self._try(holes, loose)
            ways.sort(key=itemgetter(0, 1), reverse=True)
            waiting += [(paid + charge, holes, loose, more) for charge, _, more in ways if paid + charge < self.cost]

    def _try(self, holes: list[int], loose: list[Piece]) -> list[_Way]:
        """What could leave from here. Notes the outcome if no server is too full."""
        self._tries += len(holes)
        least = min(holes)
        left = _by_home(loose)
        if least < 0:
            server = holes.index(least)
            return list(self._who_can_leave(server, 2**60, left.get(server, ())).ways(-least))
        fitted = _Fitted(self, holes, loose)
        if not fitted.homeless and not fitted.conflicts:
            self._consider(fitted, loose)
        elif self.cost >= SPREAD:
            self._imperfect.append((fitted, loose))
        if self._turned and self._tries > TRIES:
            return []
        ways = self._ways_to_a_hole(holes, left, fitted.homeless[0].gpus) if fitted.homeless else []
        self._turned |= not ways
        return ways

    # -- who could leave

    def _ways_to_a_hole(self, holes: list[int], left: Mapping[int, tuple[Piece, ...]], gpus: int) -> list[_Way]:
        """Sets of smaller pieces that leave a server, so that one piece more of `gpus` GPUs fits. Servers alike count once."""
        stock = self._stock.get(gpus)
        if stock is None:
            stock = self._stock[gpus] = [self._could_leave(server, gpus) for server in range(len(holes))]
        if left:
            stock = stock.copy()
            for server, gone in left.items():
                leavers = self._who_can_leave(server, gpus, gone)
                stock[server] = leavers.gpus, self._number(leavers.alike), leavers.last
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for server, (most, kind, last) in enumerate(stock):
            need = gpus - holes[server] % gpus
            if most >= need:
                other = found.get((need, kind))
                if other is None or other[0] < last:
                    found[need, kind] = last, server
        ways: list[_Way] = []
        for (need, _), (_, server) in found.items():
            ways += self._who_can_leave(server, gpus, left.get(server, ())).ways(need)
        return ways

    def _could_leave(self, server: int, below: int) -> tuple[int, int, int]:
        """Of the pieces with fewer than `below` GPUs on a server that nobody has left: their GPUs together, the number of their
        kind, and the job submitted last."""
        most, last, alike = 0, -1, []
        for job, gpus, far in self._settled(server):
            if gpus < below:
                alike.append((gpus, _charge(gpus, far)))
                most += gpus
                last = max(last, job)
        for piece in self._homes.get(server, ()):
            if piece.gpus < below:
                alike.append((piece.gpus, piece.charge))
                most += piece.gpus
                last = max(last, piece.job)
        alike.sort()
        return most, self._number(tuple(alike)), last

    def _number(self, kind: _Kind) -> int:
        return self._kinds.setdefault(kind, len(self._kinds))

    def _who_can_leave(self, server: int, below: int, left: tuple[Piece, ...]) -> _Leavers:
        """The pieces with fewer than `below` GPUs on a server that these have left."""
        found = self._leavers.get((server, below, left))
        if found is None:
            pieces = [piece for piece in self._at(server) if piece.gpus < below and piece not in left]
            found = self._leavers[server, below, left] = _Leavers(pieces) if pieces else NOBODY
        return found

    def _at(self, server: int) -> list[Piece]:
        """All that could leave a server, of the job submitted last first."""
        found = self._residents.get(server)
        if found is None:
            here = [
                Piece(job, gpus, self._own(job), server, gpus, settled=True, spread=far, elsewhere=far)
                for job, gpus, far in self._settled(server)
            ]
            here += self._homes.get(server, ())
            found = self._residents[server] = sorted(here, key=lambda piece: -piece.job)
        return found

    def _pieces_of(self, one: Piece) -> list[Piece]:
        """All of its job. Those of a settled job are asked for where one of them leaves."""
        found = self._of_job.get(one.job)
        if found is None:
            found = [piece for server in one.own for piece in self._at(server) if piece.job == one.job]
            self._of_job[one.job] = found
        return found

    # -- what it costs

    def settle_for_less(self) -> None:
        """If no outcome was perfect, find the best of the others; of equal ones the first."""
        if self.cost >= SPREAD:
            for fitted, loose in self._imperfect:
                self._consider(fitted, loose)

    def _consider(self, fitted: _Fitted, loose: list[Piece]) -> None:
        """Is this the best outcome so far? What fits nowhere is spread."""
        jobs = {piece.job: piece for piece in loose}
        moved = {piece.job: piece for piece in loose if piece.settled}
        cost = self._all_at_home - sum([self._at_home.get(job, 0) for job in jobs])
        cost += SPREAD * (fitted.conflicts + len(fitted.homeless)) + TOUCHED * len(moved)
        split = {piece.job: piece for piece in fitted.homeless}  # which takes one server more at least
        for job, piece in jobs.items():
            if cost >= self.cost:
                return
            if piece.own and job not in split:
                pieces = self._pieces_of(piece)
                amount = {fitted.server[piece]: piece.gpus} if len(pieces) == 1 else self._amounts(pieces, fitted)[job]
                cost += _cost(piece.own, amount)
        parts = [(piece.job, fitted.spread(piece)) for piece in fitted.homeless]
        if split:
            cost += SPREAD * sum(len(part) - 2 for _, part in parts)
            amounts = self._amounts([piece for one in split.values() for piece in self._pieces_of(one)], fitted, parts)
            cost += sum(_cost(piece.own, amounts[job]) for job, piece in split.items())
        if cost < self.cost:
            others = [piece for one in moved.values() for piece in self._pieces_of(one)]
            self.cost, self.amounts = cost, self._amounts([*self.pieces, *others], fitted, parts)

    def _amounts(
        self, pieces: Sequence[Piece], fitted: _Fitted, parts: Sequence[tuple[int, list[_Part]]] = ()
    ) -> Amounts:
        """Where these pieces are, and the parts of those that fit nowhere."""
        amounts: Amounts = {}
        for piece in pieces:
            server = fitted.server.get(piece, piece.home)
            if server is not None and piece not in fitted.homeless:
                amount = amounts.setdefault(piece.job, {})
                amount[server] = amount.get(server, 0) + piece.gpus
        for job, part in parts:
            amount = amounts.setdefault(job, {})
            for server, gpus in part:
                amount[server] = amount.get(server, 0) + gpus
        return amounts


class _Fitted:
    """Loose pieces in holes."""

    def __init__(self, search: _Search, holes: list[int], loose: list[Piece]) -> None:
        self.conflicts = 0  # servers where two jobs talk to others
        self.homeless: list[Piece] = []
        self.server: dict[Piece, int] = {}
        self._holes = holes.copy()
        self._largest = max(holes)  # at first
        self._too_large = self._largest + 1  # GPUs that fit nowhere any more
        spread = [piece for piece in loose if piece.spread]
        if spread:
            self._remote = set(search.remote)
            self._remote.difference_update(
                piece.home for piece in spread if piece.home is not None and not piece.settled
            )
        # Of pieces of one size those of spread jobs first: they have to avoid each other, the rest fills what they leave.
        for piece in sorted(loose, key=lambda piece: -2 * piece.gpus - piece.spread):
            server = self._avoiding_others(piece) if piece.spread else self._tightest(piece)
            if server is None:
                self.homeless.append(piece)
                continue
            self._holes[server] -= piece.gpus
            self.server[piece] = server
            if piece.spread:
                self.conflicts += server in self._remote
                self._remote.add(server)

    def _tightest(self, piece: Piece) -> int | None:
        """The server with the tightest hole that is large enough, one where the job has GPUs if there is any; else None."""
        holes, gpus = self._holes, piece.gpus
        if gpus >= self._too_large:
            return None
        if piece.own:
            at_home = [(holes[server], server) for server in piece.own if holes[server] >= gpus]
            if at_home:
                return min(at_home)[1]
        for size in range(gpus, self._largest + 1):
            if size in holes:
                return holes.index(size)
        self._too_large = gpus
        return None

    def _avoiding_others(self, piece: Piece) -> int | None:
        """The same, but rather one where no other job talks to other servers."""
        remote, own, gpus = self._remote, piece.own, piece.gpus
        fitting = [(s in remote, s not in own, hole, s) for s, hole in enumerate(self._holes) if hole >= gpus]
        return min(fitting)[3] if fitting else None

    def spread(self, piece: Piece) -> list[_Part]:
        """Over the largest holes; of equal ones those where it has GPUs."""
        holes, need = self._holes, piece.gpus
        parts = []
        while need:
            room = min(max(holes), need)
            if not room:
                raise ValueError(f"{need} GPUs do not fit")
            at_home = [server for server in piece.own if holes[server] >= room]
            server = min(at_home) if at_home else next(s for s, hole in enumerate(holes) if hole >= room)
            holes[server] -= room
            parts.append((server, room))
            need -= room
        return parts


class _Leavers:
    """Pieces that could leave a server, of the job submitted last first."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.gpus = sum([piece.gpus for piece in pieces])
        self._pieces = pieces
        self._ways: dict[int, list[_Way]] = {}

    @property
    def last(self) -> int:
        return self._pieces[0].job if self._pieces else -1

    @cached_property
    def alike(self) -> _Kind:
        """The same for pieces that differ in nothing that matters."""
        return tuple(sorted([(piece.gpus, piece.charge) for piece in self._pieces]))

    def ways(self, need: int) -> list[_Way]:
        """All sets with `need` GPUs in which none is superfluous."""
        found = self._ways.get(need)
        if found is None:
            sets = _sets(self._pieces, need)
            found = [(sum(one.charge for one in some), [-one.job for one in some], some) for some in sets]
            self._ways[need] = found
        return found


def _cost(own: Mapping[int, int], amount: Mapping[int, int]) -> int:
    """What it costs a job with these GPUs to get so many on these servers."""
    if not own:
        return 0
    kept = sum([min(gpus, own[server]) for server, gpus in amount.items() if server in own])
    return (0 if kept else MOVED) + min(sum(amount.values()), sum(own.values())) - kept


def _cost_at_home(pieces: list[Piece]) -> int:
    """Of a job. 0 for one that has not a home for each of its pieces: it has a loose one whatever is tried."""
    amount: dict[int, int] = {}
    for piece in pieces:
        if piece.home is None:
            return 0
        amount[piece.home] = amount.get(piece.home, 0) + piece.gpus
    return _cost(pieces[0].own, amount)


NOBODY = _Leavers([])


def _by_home(loose: list[Piece]) -> dict[int, tuple[Piece, ...]]:
    """The pieces that have left each server."""
    found: dict[int, tuple[Piece, ...]] = {}
    for piece in loose:
        if piece.home is not None:
            found[piece.home] = (*found.get(piece.home, ()), piece)
    return found


def _without(leaving: list[Piece], holes: list[int]) -> list[int]:
    wider = holes.copy()
    for piece in leaving:
        assert piece.home is not None
        wider[piece.home] += piece.gpus
    return wider


def _sets(pieces: list[Piece], need: int) -> Iterator[list[Piece]]:
    """Sets of pieces with `need` GPUs in which none is superfluous. Of pieces alike the first ones leave."""
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

    return choose(0, need)
