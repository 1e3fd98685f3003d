"""On which servers jobs get their GPUs, counted only: pieces of jobs into servers with so many free ones.

Theory of operation
-------------------
A job that fits into one server is one piece; a larger one fills whole servers, and what is left is another piece. At first every
piece stays where its job has GPUs, even if that is too much for a server; new ones are loose. Loose pieces are put, the largest
first, each into the tightest hole that it fits into. With packed shares a hole that a piece does not fill can always be filled by
smaller ones, so it does not matter for what comes later which hole is taken (first fit decreasing of AFS App. E, Prop. 1).

Where a server is too full, or a piece fits nowhere, others have to give way: those of any size in the first case, smaller
ones in the second. What leaves becomes loose, and the piece takes its place; whatever is as large has a place by then, so that
only what is smaller is still to be put. Each minimal set of pieces whose leaving helps is tried, the cheapest first, until
nothing cheaper can be had or `TRIES` are used up. With packed shares the very first attempt leads to a perfect placement: free
GPUs and those of smaller pieces are multiples of the piece on each server, and all of them together are enough. With other
shares this is bin packing: what fits nowhere is spread over the largest holes.

Outcomes are compared by, in this order: servers too many; jobs that keep none of their GPUs; jobs that move although they need
no change; GPUs that are not kept. So a job that is placed well does not move to let another one keep more of its GPUs, only where
one cannot be placed well otherwise, or where more jobs than it would have to move instead.

An attempt goes on from where the one before it had no place for a piece (`_State`), and only one server differs then. So
what all servers offer is worked out once for each size and corrected for that one (`_Stock`), what could leave a server once for
all attempts in which it is the same (`_Leavers`), and the price of an outcome is counted for the jobs that have a loose piece;
all others cost what they cost at their homes. No outcome with a server too many is as good as one without, whatever has moved:
such ones are only worked out to their end if there is none without. Settled jobs are numbers (`Resident`) until one of them has
to be thought of as leaving: of servers alike one is looked at closely, and in a large cluster most are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

SPREAD, MOVED, TOUCHED = 2**60, 2**40, 2**20  # what counts more than any number of what comes after it
TRIES = 64  # servers looked at; the first attempt may take more. Eight times as many bring flaws down by a hundredth

Amounts = dict[int, dict[int, int]]  # by job and server: GPUs
Resident = tuple[int, int, bool]  # a settled job on a server: which, its GPUs there, and whether it has GPUs elsewhere
_Part = tuple[int, int]  # server, and GPUs there
_Kind = tuple[tuple[int, int], ...]  # GPUs and charges of what could leave a server
_Offer = tuple[int, int, int]  # what could leave a server: GPUs, the number of its kind, and the job submitted last
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
    search.explore(_State(left, [piece for piece in pieces if piece.home is None], search.remote))
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
        self._imperfect: list[_State] = []  # not priced
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
        self._offers: dict[int, list[_Offer]] = {}  # of all servers by `below`, while nobody has left
        self._kinds: dict[_Kind, int] = {}
        self._at_home = {job: _cost_at_home(own) for job, own in self._of_job.items()}
        self._all_at_home = sum(self._at_home.values())

    def explore(self, first: _State) -> None:
        """All outcomes where at least the loose pieces of `first` are loose, depth first."""
        waiting: list[tuple[int, _State, Piece | None, list[Piece]]] = []
        paid, state = 0, first
        while True:
            piece, ways = self._try(state)
            ways.sort(key=itemgetter(0, 1), reverse=True)
            waiting += [(paid + charge, state, piece, more) for charge, _, more in ways if paid + charge < self.cost]
            while waiting and waiting[-1][0] >= self.cost:
                waiting.pop()
            if not waiting or (self._turned and self._tries > TRIES):
                return
            paid, state, piece, leaving = waiting.pop()
            state = state.after(self, leaving, piece)

    def _try(self, state: _State) -> tuple[Piece | None, list[_Way]]:
        """Put what fits. Returns the first piece that does not, and what could leave for it; None, and what could leave a server
        that is too full; or nothing, when the outcome has been noted."""
        self._tries += len(state.holes)
        least = min(state.holes)
        if least < 0:
            server = state.holes.index(least)
            return None, list(self.who_can_leave(server, 2**60, state.gone.get(server, ())).ways(-least))
        while (piece := state.put()) is not None:
            ways = self._ways_to_a_hole(state, piece.gpus)
            if ways:
                if self.cost >= SPREAD:
                    self._imperfect.append(state.but_for(piece))
                return piece, ways
            state.homeless.append(piece)
        if not state.homeless and not state.conflicts:
            self._consider(state)
        elif self.cost >= SPREAD:
            self._imperfect.append(state)
        self._turned = True
        return None, []

    # -- who could leave

    def _ways_to_a_hole(self, state: _State, gpus: int) -> list[_Way]:
        """Sets of smaller pieces that leave a server, so that one piece of `gpus` GPUs fits. Servers alike count once."""
        if state.stock is None or state.stock.gpus != gpus:
            state.stock = _Stock(gpus, state.holes, self._offers_to(state, gpus))
        ways: list[_Way] = []
        for need, server in state.stock.choice():
            ways += self.who_can_leave(server, gpus, state.gone.get(server, ())).ways(need)
        return ways

    def _offers_to(self, state: _State, gpus: int) -> list[_Offer]:
        """What could leave each server for a piece of `gpus` GPUs."""
        offers = self._offers.get(gpus)
        if offers is None:
            offers = self._offers[gpus] = [self._offer(server, gpus) for server in range(len(state.holes))]
        offers = offers.copy()
        for server, gone in state.gone.items():
            offers[server] = self.what_is_left(server, gpus, gone)
        return offers

    def what_is_left(self, server: int, below: int, gone: tuple[Piece, ...]) -> _Offer:
        """As `_offer`, where these have left."""
        leavers = self.who_can_leave(server, below, gone)
        return leavers.gpus, self._number(leavers.alike), leavers.last

    def _offer(self, server: int, below: int) -> _Offer:
        """The pieces with fewer than `below` GPUs on a server that nobody has left."""
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

    def who_can_leave(self, server: int, below: int, left: tuple[Piece, ...]) -> _Leavers:
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
            for state in self._imperfect:
                while (piece := state.put()) is not None:
                    state.homeless.append(piece)
                self._consider(state)

    def _consider(self, fitted: _State) -> None:
        """Is this the best outcome so far? What fits nowhere is spread."""
        loose = fitted.loose
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
        self, pieces: Sequence[Piece], fitted: _State, parts: Sequence[tuple[int, list[_Part]]] = ()
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


class _State:
    """Loose pieces in holes, as far as they have been put there, and who has given way."""

    def __init__(self, holes: list[int], loose: list[Piece], remote: frozenset[int]) -> None:
        self.conflicts = 0  # servers where two jobs talk to others
        self.homeless: list[Piece] = []
        self.server: dict[Piece, int] = {}
        self.holes = holes
        self.loose = loose  # all of them, wherever they are now
        self.gone: dict[int, tuple[Piece, ...]] = {}  # who has left which server
        self.stock: _Stock | None = None  # for a piece as large as the last one that fitted nowhere
        self._waiting = _line(loose)  # to be put, the next one last
        self._remote = set(remote)  # where jobs talk to other servers
        self._too_large = 2**60  # GPUs that fit nowhere any more

    def _copy(self) -> _State:
        copy = object.__new__(_State)
        copy.__dict__.update(self.__dict__)
        copy.homeless, copy.server, copy.holes = self.homeless.copy(), self.server.copy(), self.holes.copy()
        copy._waiting, copy._remote = self._waiting.copy(), self._remote.copy()
        return copy

    def but_for(self, piece: Piece) -> _State:
        """The same, where this piece fits nowhere."""
        copy = self._copy()
        copy.homeless.append(piece)
        return copy

    def after(self, search: _Search, leaving: list[Piece], piece: Piece | None) -> _State:
        """The same after these have left a server; `piece`, if there is one, has got their room."""
        state = self._copy()
        server = leaving[0].home
        assert server is not None
        gone = (*self.gone.get(server, ()), *leaving)
        state.gone = {**self.gone, server: gone}
        state.loose = self.loose + leaving
        state._waiting = _line(state._waiting[::-1] + leaving)
        for one in leaving:
            state.holes[server] += one.gpus
            if one.spread and not one.settled:
                state._forget_remote(server)
        if piece is not None:
            state._put(piece, server)
        if state.stock is not None:
            below = state.stock.gpus
            state.stock = state.stock.after(server, state.holes[server], search.what_is_left(server, below, gone))
        return state

    def _forget_remote(self, server: int) -> None:
        """The job that talked to others from here has left; another one may have been put beside it."""
        if any(piece.spread and at == server for piece, at in self.server.items()):
            self.conflicts -= 1
        else:
            self._remote.discard(server)

    def put(self) -> Piece | None:
        """Put all that wait, the largest first; the first that fits nowhere comes back."""
        while self._waiting:
            piece = self._waiting.pop()
            server = self._avoiding_others(piece) if piece.spread else self._tightest(piece)
            if server is None:
                return piece
            self._put(piece, server)
        return None

    def _put(self, piece: Piece, server: int) -> None:
        self.holes[server] -= piece.gpus
        self.server[piece] = server
        if piece.spread:
            self.conflicts += server in self._remote
            self._remote.add(server)

    def _tightest(self, piece: Piece) -> int | None:
        """The server with the tightest hole that is large enough, one where the job has GPUs if there is any; else None."""
        holes, gpus = self.holes, piece.gpus
        if gpus >= self._too_large:
            return None
        if piece.own:
            at_home = [(holes[server], server) for server in piece.own if holes[server] >= gpus]
            if at_home:
                return min(at_home)[1]
        if gpus in holes:
            return holes.index(gpus)
        tightest = min([hole for hole in holes if hole > gpus], default=0)
        if tightest:
            return holes.index(tightest)
        self._too_large = gpus
        return None

    def _avoiding_others(self, piece: Piece) -> int | None:
        """The same, but rather one where no other job talks to other servers."""
        remote, own, gpus = self._remote, piece.own, piece.gpus
        fitting = [(s in remote, s not in own, hole, s) for s, hole in enumerate(self.holes) if hole >= gpus]
        return min(fitting)[3] if fitting else None

    def spread(self, piece: Piece) -> list[_Part]:
        """Over the largest holes; of equal ones those where it has GPUs."""
        holes, need = self.holes, piece.gpus
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


class _Stock:
    """What all servers offer to a piece of so many GPUs, for which no hole is large enough."""

    def __init__(self, gpus: int, holes: list[int], offers: list[_Offer]) -> None:
        self.gpus = gpus
        self._holes = holes.copy()
        self._offers = offers
        # By the GPUs that have to leave, and of what kind: the servers, that of the job submitted last first.
        self._alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for server, (most, kind, last) in enumerate(offers):
            need = gpus - holes[server]
            if most >= need:
                self._alike.setdefault((need, kind), []).append((-last, server))
        for servers in self._alike.values():
            servers.sort()

    def choice(self) -> list[tuple[int, int]]:
        """How many GPUs have to leave which server; of those alike one."""
        return [(need, servers[0][1]) for (need, _), servers in self._alike.items()]

    def after(self, server: int, hole: int, offer: _Offer) -> _Stock:
        """The same, where one server has changed."""
        copy = object.__new__(_Stock)
        copy.gpus, copy._alike = self.gpus, self._alike.copy()
        copy._holes, copy._offers = self._holes.copy(), self._offers.copy()
        _, kind, _ = self._offers[server]
        before = self.gpus - self._holes[server], kind
        others = [one for one in self._alike[before] if one[1] != server]
        if others:
            copy._alike[before] = others
        else:
            del copy._alike[before]
        most, kind, last = copy._offers[server] = offer
        copy._holes[server] = hole
        need = self.gpus - hole
        if most >= need:
            copy._alike[need, kind] = sorted([*copy._alike.get((need, kind), ()), (-last, server)])
        return copy


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


def _line(loose: list[Piece]) -> list[Piece]:
    """In the order in which they are put, the first one last: the largest first; of one size those of spread jobs, since these
    have to avoid each other and the rest fills what they leave; then as they stand."""
    line = sorted(loose, key=lambda piece: -2 * piece.gpus - piece.spread)
    line.reverse()
    return line


def _sets(pieces: list[Piece], need: int) -> Iterator[list[Piece]]:
    """Sets of pieces with `need` GPUs in which none is superfluous. Of pieces alike the first ones leave."""
    alike: dict[tuple[int, int], list[Piece]] = {}
    for piece in pieces:
        alike.setdefault((-piece.gpus, piece.charge), []).append(piece)
    kinds = [alike[kind] for kind in sorted(alike)]

    return _choose(kinds, 0, need)


def _choose(kinds: list[list[Piece]], at: int, need: int) -> Iterator[list[Piece]]:
    """The same, from these kinds on."""
    if at == len(kinds):
        return
    gpus = kinds[at][0].gpus
    for count in range(len(kinds[at]) + 1):
        chosen = kinds[at][:count]
        if count * gpus >= need:
            yield chosen
            return
        for others in _choose(kinds, at + 1, need - count * gpus):
            yield chosen + others
