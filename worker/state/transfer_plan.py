"""Who sends the state to whom when workers join (Elan IV; design: worker-runtime 5). Pure.

Theory of operation
-------------------
Elan's two rules: each joiner gets the state from the *nearest* worker that has it, one neighbour for each joiner; and all
transfers go on at once, except that those which would share a contended link go *in turn* (its Figure 9 is a test here).

A plan is made in rounds of transfers that share no lane (`protocol.topology`). In each round every joiner that still waits is
looked at, and gets the nearest source whose lanes are free; of equally near ones a source that fewer others are nearer to, then
the one that has sent least, then the lowest rank. What does not fit goes into a later round. Three things go beyond the paper:

* **Joiners serve joiners** (`relays`). The paper's sources are the old workers only. Here a joiner of an earlier round is a
  source as well: of eight joiners on a new server one is served across the network and the others by it, and the number of
  sources doubles with each round. So that this begins early, joiners that bring the state nearer to many others go first, and
  a joiner does not take a far link in a round in which somebody nearer to it is served.
* **A GPU's own slot is a contended link**: the paper names only L3. Two transfers out of one PCIe slot halve each other.
* **NVLink** is a level before L1, and never contended.

The choice is greedy: among up to six workers it takes at most a round more than the best plan under the same rules, mostly none.
No joiner is ever served from farther away than the nearest worker that has the state to begin with.

How a plan is carried out is `replication`'s business: rounds are not barriers. A transfer begins as soon as those named in
`after` are complete, which are the earlier ones on each of its lanes; its source need not be complete, and passes on what it
has. So each lane carries one transfer at a time, whatever each one takes. Sources and `after` point to earlier transfers only, so
nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...protocol.model import GpuAddress, GpuPlace
from ...protocol.topology import Lane, Link, Spot, lanes, link

NOWHERE = GpuPlace()


@dataclass(frozen=True)
class Transfer:
    """Who sends the state to whom.

    The source has the state to begin with, or is the target of an earlier transfer of the plan.
    """

    source_rank: int
    target_rank: int
    round: int = 0  # the earliest, if each transfer took one round
    after: tuple[int, ...] = ()  # positions, in the plan, of the transfers that must be complete before this one begins


def plan_transfers(
    gpus: Sequence[GpuAddress],
    holders: Sequence[int],
    joiners: Sequence[int],
    places: Sequence[GpuPlace] = (),
    relays: bool = False,
) -> tuple[Transfer, ...]:
    """One transfer for each joiner: by round, and within a round in the order of `joiners`.

    gpus, places: of all ranks; without places only servers are told apart. holders: ranks that have the state. relays: may a
    joiner that has the state serve others? Raises ValueError if nobody has the state.
    """
    if joiners and not holders:
        raise ValueError("nobody has the state that the joiners need")
    map_ = _Map([Spot(*each) for each in zip(gpus, places or [NOWHERE] * len(gpus), strict=True)])
    nearest = {joiner: min(map_.link(holder, joiner) for holder in holders) for joiner in joiners}
    planner = _Planner(map_, nearest, list(holders), relays)
    waiting, rounds = list(joiners), 0
    transfers: list[Transfer] = []
    while waiting:
        sources = planner.next_round(waiting)
        transfers += [Transfer(sources[joiner], joiner, rounds) for joiner in waiting if joiner in sources]
        waiting = [joiner for joiner in waiting if joiner not in sources]
        rounds += 1
    return _in_turn(transfers, map_)


class _Map:
    """Links and lanes between ranks, looked up once."""

    def __init__(self, spots: Sequence[Spot]) -> None:
        self._spots = spots
        self._links: dict[tuple[int, int], Link] = {}

    def link(self, a: int, b: int) -> Link:
        found = self._links.get((a, b))
        if found is None:
            found = self._links[a, b] = self._links[b, a] = link(self._spots[a], self._spots[b])
        return found

    def lanes(self, source: int, target: int) -> tuple[Lane, ...]:
        return lanes(self._spots[source], self._spots[target])


class _Planner:
    """Makes one round after the other; remembers who has the state, and how often each has sent it."""

    def __init__(self, map_: _Map, farthest: dict[int, Link], holders: list[int], relays: bool) -> None:
        """farthest: for each joiner, the link that it may be served over at most."""
        self._map = map_
        self._farthest = farthest
        self._sources = holders
        self._relays = relays
        self._load = dict.fromkeys([*holders, *farthest], 0)

    def next_round(self, waiting: Sequence[int]) -> dict[int, int]:
        """The joiners that are served in it (at least one of `waiting`), and by whom."""
        busy: set[Lane] = set()
        served: dict[int, int] = {}
        wanted = self._wanted(waiting)
        for joiner in self._seeds_first(waiting) if self._relays else waiting:
            source = self._source(joiner, busy, wanted)
            if source is None or (self._relays and self._nearer_soon(joiner, source, served)):
                continue
            served[joiner] = source
            self._load[source] += 1
            busy.update(self._map.lanes(source, joiner))
            for other in self._sources:
                level = self._map.link(other, joiner)
                wanted[other][level] -= level <= self._farthest[joiner]
        assert served, "the first that is looked at finds all lanes free"
        if self._relays:
            self._sources += [joiner for joiner in waiting if joiner in served]
        return served

    def _wanted(self, waiting: Sequence[int]) -> dict[int, list[int]]:
        """For each source: how many it may serve over each level of link."""
        wanted = {source: [0] * len(Link) for source in self._sources}
        for source, levels in wanted.items():
            for joiner in waiting:
                level = self._map.link(source, joiner)
                levels[level] += level <= self._farthest[joiner]
        return wanted

    def _source(self, joiner: int, busy: set[Lane], wanted: dict[int, list[int]]) -> int | None:
        """The best of those whose lanes are free. NVLink is not looked at in who wants a source: it takes none of them."""
        best: tuple[Link, int, int, int] | None = None
        for source in self._sources:
            level = self._map.link(source, joiner)
            rank = (level, sum(wanted[source][Link.SWITCH : level]), self._load[source], source)
            if level > self._farthest[joiner] or (best is not None and best < rank):
                continue
            if busy.isdisjoint(self._map.lanes(source, joiner)):
                best = rank
        return None if best is None else best[-1]

    def _nearer_soon(self, joiner: int, source: int, served: dict[int, int]) -> bool:
        level = self._map.link(source, joiner)
        return any(self._map.link(other, joiner) < level for other in served)

    def _seeds_first(self, waiting: Sequence[int]) -> list[int]:
        """Who brings the state nearer to most of the others first, then who is farther from it; then in the order given."""
        now = {joiner: min(self._map.link(source, joiner) for source in self._sources) for joiner in waiting}

        def helped(joiner: int) -> int:
            return sum(other != joiner and self._map.link(joiner, other) < now[other] for other in waiting)

        return sorted(waiting, key=lambda joiner: (-helped(joiner), -now[joiner]))  # sorted() keeps the order of equals


def _in_turn(transfers: Sequence[Transfer], map_: _Map) -> tuple[Transfer, ...]:
    """Each transfer after the one that had each of its lanes before."""
    last: dict[Lane, int] = {}
    found: list[Transfer] = []
    for position, transfer in enumerate(transfers):
        needed = map_.lanes(transfer.source_rank, transfer.target_rank)
        after = tuple(sorted({last[lane] for lane in needed if lane in last}))
        last.update(dict.fromkeys(needed, position))
        found.append(Transfer(transfer.source_rank, transfer.target_rank, transfer.round, after))
    return tuple(found)
