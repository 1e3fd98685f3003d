"""Choice of the servers on which jobs get their GPUs: pieces of jobs are packed into servers by number of free GPUs
alone.

Theory of operation
-------------------

A job that fits into one server is one piece; a larger job fills whole servers, and the rest is another piece. At first
every piece stays where its job has GPUs, even if that overfills the server; pieces of new jobs are loose. Pieces leave
an overfull server and become loose. Then the loose pieces are put, the largest first, each into the tightest hole that
fits. Where there is no such hole, smaller pieces give way on one server: they become loose, and the larger piece takes
their place. The cheapest pieces give way: first few jobs should lose all of their GPUs, then few jobs should move that
need no change, then few GPUs should change hands. Each choice is final. An earlier version tried alternatives, which
saved a tenth of the migrations and nothing of the average JCT (docs/design/scheduling.md).

Packed shares are placed perfectly on servers of equal size: each job on the fewest servers, and no two jobs that
communicate with other servers on one (AFS App. E, Proposition 1). Servers have 2^k GPUs; a piece has 1, 2, 4 and so on,
up to a whole server. Let a piece of g GPUs find no hole. Pieces of g GPUs and more have been put before, or stay. The
GPUs that they leave of a server, free or held by smaller pieces, are a multiple of g. Over all servers that is at least
g, since all shares fit into the cluster. So one server leaves g GPUs or more, and the piece takes its place there. Only
smaller pieces become loose by that, so the process ends, and then each piece has a place. A job that communicates with
other servers has whole ones, and no neighbour. The proof holds for any choice of the server and of the pieces that
leave it.

With other shares, or servers of different sizes, this is bin packing: all smaller pieces of a server may not be enough
for a larger one. Such a piece is spread over the largest holes after all others have been put, and the next decision
tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

MOVED = 2**40  # a job loses all its GPUs
TOUCHED = 2**20  # a job moves although it needs no change; beside both, one GPU that changes hands costs 1

Amounts = dict[int, dict[int, int]]  # by job and server: GPUs
# A piece that could leave a server: its price, job, GPUs, and whether its job communicates with other servers.
Resident = tuple[int, int, int, bool]
_Way = tuple[int, list[int], list[Resident]]  # price, negated jobs, and the pieces that leave
_NO_WAY: _Way = (2**60, [], [])


@dataclass(eq=False, slots=True)
class ServerPart:
    """The GPUs that a job should have on one server. Not frozen: a frozen object takes twice the time to create."""

    job: int
    gpus: int
    own: Mapping[int, int]  # GPUs of the job, by server
    home: int | None = None  # server where the piece stays if it can
    spread: bool = False  # whether the job communicates with other servers


@dataclass(frozen=True)
class Fit:
    """GPUs by job and server, of jobs that were not settled or had to move.

    `perfect`: on the fewest servers, without conflicts.
    """

    amounts: Amounts
    perfect: bool


def fit(
    holes: Sequence[int],
    pieces: Sequence[ServerPart],
    settled: Callable[[int], list[Resident]],
    own: Callable[[int], Mapping[int, int]],
    remote: frozenset[int],
    racks: Sequence[int] | None = None,
) -> Fit:
    """Put `pieces` into `holes`, the GPUs of each server that settled jobs leave free.

    `settled`: returns the settled jobs on a server, called only if one may have to move. `own`: returns a job's GPUs by
    server. `remote`: servers where settled jobs communicate with other servers. `racks`: rack of each server; None: all
    equal. Raises ValueError if there is not enough room for all pieces.
    """
    bins = _Servers(holes, pieces, settled, own, remote, racks)
    bins.relieve()
    homeless = bins.put_all()
    for piece in homeless:
        bins.spread(piece)
    return Fit(bins.amounts, not homeless and max(bins.talking, default=0) < 2)


class _Servers:
    """State of the packing: pieces on each server, free GPUs, and loose pieces."""

    def __init__(
        self,
        holes: Sequence[int],
        pieces: Sequence[ServerPart],
        settled: Callable[[int], list[Resident]],
        own: Callable[[int], Mapping[int, int]],
        remote: frozenset[int],
        racks: Sequence[int] | None,
    ) -> None:
        self.amounts: Amounts = {piece.job: {} for piece in pieces}
        self.talking = [0] * len(holes)  # by server: jobs that communicate with other servers
        for server in remote:
            self.talking[server] += 1
        self._holes = list(holes)
        self._settled, self._own = settled, own
        self._at_home = [(piece.home, piece) for piece in pieces if piece.home is not None]
        self._racks = racks
        self._known: dict[int, list[Resident]] = {}  # by server: pieces that could leave it
        self._ways: dict[int, _Way] = {}  # by server: the cheapest way to free a place for a piece of size `_ways_for`
        self._ways_for = 0
        self._numbers = count()
        self._loose = [self._in_line(piece) for piece in pieces if piece.home is None]
        heapify(self._loose)
        for server, piece in self._at_home:
            self._put(piece, server)

    def _residents(self, server: int) -> list[Resident]:
        """Return the pieces that could leave a server."""
        found = self._known.get(server)
        if found is None:
            found = self._known[server] = self._settled(server)
            for home, piece in self._at_home:
                if home == server:
                    price = 0 if len(piece.own) > 1 else MOVED + min(piece.own[server], piece.gpus)
                    found.append((price, piece.job, piece.gpus, piece.spread))
        return found

    def relieve(self) -> None:
        """Remove the cheapest pieces, of any size, from overfull servers."""
        for server, hole in enumerate(self._holes):
            if hole < 0:
                self._give_way(server, _cheapest(self._residents(server), -hole)[2])

    def put_all(self) -> list[ServerPart]:
        """Put all loose pieces. Return those that fit nowhere."""
        homeless = []
        while self._loose:
            piece = heappop(self._loose)[2]
            server = self._avoiding_others(piece) if piece.spread else self._tightest(piece)
            if server is None:
                server = self._made_free(piece.gpus)
            if server is None:
                homeless.append(piece)
            else:
                self._put(piece, server)
        return homeless

    def _in_line(self, piece: ServerPart) -> tuple[int, int, ServerPart]:
        """Return a heap entry of a piece.

        The largest piece comes first. Of one size, pieces of spread jobs come first, because these have to avoid each
        other and the rest fills the space that they leave. Then pieces follow in the order in which they became loose.
        """
        return -2 * piece.gpus - piece.spread, next(self._numbers), piece

    def _put(self, piece: ServerPart, server: int) -> None:
        self._holes[server] -= piece.gpus
        amount = self.amounts[piece.job]
        amount[server] = amount.get(server, 0) + piece.gpus
        self.talking[server] += piece.spread
        self._ways.pop(server, None)

    def _tightest(self, piece: ServerPart) -> int | None:
        """Return the server with the tightest sufficient hole, preferring servers where the job has GPUs; None if no
        hole suffices."""
        holes, gpus = self._holes, piece.gpus
        at_home = [(holes[server], server) for server in piece.own if holes[server] >= gpus]
        if at_home:
            return min(at_home)[1]
        if gpus in holes:
            return holes.index(gpus)
        tightest = min([hole for hole in holes if hole > gpus], default=0)
        return holes.index(tightest) if tightest else None

    def _avoiding_others(self, piece: ServerPart) -> int | None:
        """Return a server, as `_tightest` does, but prefer one without a spread job, then one in the job's rack."""
        talking, own, gpus = self.talking, piece.own, piece.gpus
        if self._racks is None:
            fitting = [(talking[s] > 0, s not in own, hole, s) for s, hole in enumerate(self._holes) if hole >= gpus]
            return min(fitting)[3] if fitting else None
        racks, rank = self._racks, self._rack_ranks(piece, self._racks)
        able = [
            (talking[s] > 0, s not in own, rank[racks[s]], hole, s)
            for s, hole in enumerate(self._holes)
            if hole >= gpus
        ]
        return min(able)[4] if able else None

    def _rack_ranks(self, piece: ServerPart, racks: Sequence[int]) -> dict[int, int]:
        """Rank the racks for a job: first its own, then the rack where it fits most tightly, then the rack with room
        for most of it."""
        there = {racks[server] for server in (*self.amounts[piece.job], *piece.own)}
        need = piece.gpus + sum(other.gpus for _, _, other in self._loose if other.job == piece.job)
        room = dict.fromkeys(racks, 0)
        for server, hole in enumerate(self._holes):
            if hole > 0 and not self.talking[server]:
                room[racks[server]] += hole
        order = sorted(room, key=lambda rack: (rack not in there, room[rack] < need, abs(room[rack] - need), rack))
        return {rack: rank for rank, rack in enumerate(order)}

    # -- giving way

    def _made_free(self, gpus: int) -> int | None:
        """Clear smaller pieces from the server where that is cheapest for a piece of `gpus` GPUs, and return the
        server; None if none suffices.

        Of equal prices, the job submitted last gives way.
        """
        if gpus != self._ways_for:
            self._ways, self._ways_for = {}, gpus
        ways = self._ways
        for server, hole in enumerate(self._holes):
            if server not in ways:
                ways[server] = _cheapest([one for one in self._residents(server) if one[2] < gpus], gpus - hole)
        _, server = min([(way[:2], server) for server, way in ways.items()])
        leaving = ways[server][2]
        if not leaving:
            return None
        self._give_way(server, leaving)
        return server

    def _give_way(self, server: int, leaving: Sequence[Resident]) -> None:
        for one in leaving:
            self._residents(server).remove(one)
            _, job, gpus, spread = one
            piece = ServerPart(job, gpus, self._own(job), spread=spread)
            amount = self.amounts.setdefault(job, dict(piece.own))
            amount[server] -= gpus
            if not amount[server]:
                del amount[server]
            self._holes[server] += gpus
            self.talking[server] -= spread
            heappush(self._loose, self._in_line(piece))

    def spread(self, piece: ServerPart) -> None:
        """Spread a piece over the largest holes; of equal ones, those on servers where its job has GPUs."""
        holes, need = self._holes, piece.gpus
        amount = self.amounts[piece.job]
        while need:
            room = min(max(holes), need)
            if not room:
                raise ValueError(f"{need} GPUs do not fit")
            at_home = [server for server in piece.own if holes[server] >= room]
            server = min(at_home) if at_home else next(s for s, hole in enumerate(holes) if hole >= room)
            holes[server] -= room
            amount[server] = amount.get(server, 0) + room
            need -= room


def _cheapest(residents: Sequence[Resident], need: int) -> _Way:
    """Choose pieces with `need` GPUs in total, none of them superfluous; no piece if all of them are not enough.

    The pieces are chosen one by one by price per needed GPU; of equal prices, the job submitted last.
    """
    if sum([gpus for _, _, gpus, _ in residents]) < need:
        return _NO_WAY
    chosen: list[Resident] = []
    for one in sorted(residents, key=lambda one: (one[0] / min(one[2], need), -one[1])):
        chosen.append(one)
        need -= one[2]
        if need <= 0:
            break
    for one in chosen[:-1]:
        if need + one[2] <= 0:
            chosen.remove(one)
            need += one[2]
    return sum([price for price, _, _, _ in chosen]), [-job for _, job, _, _ in chosen], chosen
