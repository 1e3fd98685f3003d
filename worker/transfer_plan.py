"""Plan of the transfers of the state to joining workers (Elan IV; design: worker-runtime 5). Pure.

Theory of operation
-------------------
Elan's two rules: each joining worker gets the state from the *nearest* worker that has it, one source for each; and all
transfers run at the same time, except that those which would share a contended link run *in turn* (Elan's Figure 9 is a
test here).

A plan is made in rounds of transfers that share no lane (`protocol.topology`). In each round every joining worker that
still waits is considered, and gets the nearest source of which the lanes are free. Ties go to the source that is
nearest to the fewest other joining workers, then to the one that has sent least, then to the lowest rank. Transfers
that do not fit go into a later round. Three rules go beyond the paper:

* **Joining workers forward the state** (`relays`). The paper's sources are the old workers only. Here a joining worker of
  an earlier round is a source as well: of eight joining workers on a new server one is served across the network and the
  others by it, and the number of sources doubles with each round. So that this begins early, workers that bring the state
  nearer to many others go first, and a worker does not take a far link in a round in which a nearer worker is served.
* **A GPU's own slot is a contended link**: the paper names only L3. Two transfers out of one PCIe slot halve each other.
* **NVLink** is a level before L1, and never contended.

The choice is greedy: among up to six workers it takes at most a round more than the best plan under the same rules,
mostly none. No worker is ever served from farther away than the nearest worker that has the state at the beginning.

`replication` executes a plan: rounds are not barriers. A transfer begins as soon as those named in `after` are
complete, which are the earlier ones on each of its lanes. Its source need not be complete, and forwards the pieces that
it has. So each lane carries one transfer at a time, whatever each one takes. Sources and `after` refer to earlier
transfers only, so no cycle of waiting is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..protocol.model import GpuAddress, GpuPlace
from ..protocol.topology import Lane, Link, Spot, lanes, link

NOWHERE = GpuPlace()


@dataclass(frozen=True)
class Transfer:
    """One transfer of the state.

    The source has the state at the beginning, or is the target of an earlier transfer of the plan.
    """

    source_rank: int
    target_rank: int
    round: int = 0  # the earliest possible, if each transfer takes one round
    after: tuple[int, ...] = ()  # positions, in the plan, of the transfers that must be complete before this one begins


def plan_transfers(
    gpus: Sequence[GpuAddress],
    holders: Sequence[int],
    joiners: Sequence[int],
    places: Sequence[GpuPlace] = (),
    relays: bool = False,
) -> tuple[Transfer, ...]:
    """Return one transfer for each joining rank: by round, and within a round in the order of `joiners`.

    gpus, places: of all ranks; without places only the servers are distinguished. holders: ranks that have the state.
    relays: let a joining worker that has the state serve others. Raises ValueError if no rank has the state.
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
    """Makes one round after the other; remembers which ranks have the state, and how often each has sent it."""

    def __init__(self, map_: _Map, farthest: dict[int, Link], holders: list[int], relays: bool) -> None:
        """farthest: for each joining rank, the farthest link over which it may be served."""
        self._map = map_
        self._farthest = farthest
        self._sources = holders
        self._relays = relays
        self._load = dict.fromkeys([*holders, *farthest], 0)

    def next_round(self, waiting: Sequence[int]) -> dict[int, int]:
        """Return the joining ranks that are served in this round, at least one of `waiting`, with their sources."""
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
        """Return for each source how many joining ranks it may serve over each level of link."""
        wanted = {source: [0] * len(Link) for source in self._sources}
        for source, levels in wanted.items():
            for joiner in waiting:
                level = self._map.link(source, joiner)
                levels[level] += level <= self._farthest[joiner]
        return wanted

    def _source(self, joiner: int, busy: set[Lane], wanted: dict[int, list[int]]) -> int | None:
        """Return the best source with free lanes; None without any.

        Demand over NVLink is ignored, since NVLink occupies no lane.
        """
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
        """Sort: ranks that bring the state nearer to most others first, then those farther from the state, then in the
        given order.
        """
        now = {joiner: min(self._map.link(source, joiner) for source in self._sources) for joiner in waiting}

        def helped(joiner: int) -> int:
            return sum(other != joiner and self._map.link(joiner, other) < now[other] for other in waiting)

        return sorted(waiting, key=lambda joiner: (-helped(joiner), -now[joiner]))  # sorted() is stable


def _in_turn(transfers: Sequence[Transfer], map_: _Map) -> tuple[Transfer, ...]:
    """Let each transfer follow the previous transfer on each of its lanes."""
    last: dict[Lane, int] = {}
    found: list[Transfer] = []
    for position, transfer in enumerate(transfers):
        needed = map_.lanes(transfer.source_rank, transfer.target_rank)
        after = tuple(sorted({last[lane] for lane in needed if lane in last}))
        last.update(dict.fromkeys(needed, position))
        found.append(Transfer(transfer.source_rank, transfer.target_rank, transfer.round, after))
    return tuple(found)
