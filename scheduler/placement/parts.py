"""Placement where not every job may use every GPU: part by part, each as a cluster of its own (`sharing`).

Jobs with a fixed number of GPUs on each server have theirs already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ..sets import union
from ..sharing import Sharing
from ..view import ClusterView, Gpus, ServerInView
from .fewest_servers import Placements, layout_of
from .registry import Placement

# A part's GPUs on a server: a set of the view, where the server and the piece begin, and the positions; None: all of
# it.
_Piece = tuple[Gpus, int, int, tuple[int, ...] | None]


def place(
    view: ClusterView, sharing: Sharing, stage: Placement, first: Mapping[int, Gpus] | None, stay: Collection[int]
) -> Placements:
    """Return a placement for every row with a share. `first`, `stay`: as for `fewest_servers.place`."""
    if sharing.whole:
        return stage.place(view.servers, view.placements, sharing.given, first, stay)
    placed = dict(sharing.seats)
    taken = union(placed.values())
    by_row = sorted(sharing.amounts.items())
    for number, mask in enumerate(sharing.parts):
        amounts = {row: own[number] for row, own in by_row if own.get(number)}
        if amounts:
            part = _Part(view.servers, mask & ~taken)
            for row, gpus in part.place(stage, view.placements, amounts, first or {}, stay):
                placed[row] = placed.get(row, 0) | gpus
    return dict(sorted(placed.items()))


class _Part:
    """Some GPUs of a view as a cluster of their own, with their own bits in sets."""

    def __init__(self, servers: Sequence[ServerInView], mask: Gpus) -> None:
        self.servers: list[ServerInView] = []
        pieces: list[_Piece] = []
        there = []
        begin = inner = 0
        for number, server in enumerate(servers):
            size = len(server.gpus)
            here = mask >> begin & ((1 << size) - 1)
            if here:
                kept = None if here.bit_count() == size else tuple(at for at in range(size) if here >> at & 1)
                self.servers.append(server if kept is None else server.only(kept))
                pieces.append((here << begin, begin, inner, kept))
                there.append(number)
                inner += here.bit_count()
            begin += size
        self._at = [piece for piece in pieces for _ in range(piece[0].bit_count())]  # by inner bit
        self._of = dict(zip(there, pieces, strict=True))
        self._server = layout_of(tuple([len(server.gpus) for server in servers])).server  # by bit of the view
        self._mask = mask

    def place(
        self,
        stage: Placement,
        present: Mapping[int, Gpus],
        amounts: Mapping[int, int],
        first: Mapping[int, Gpus],
        stay: Collection[int],
    ) -> Iterator[tuple[int, Gpus]]:
        """Yield the GPUs of each of these jobs, as sets of the view."""
        here = {row: self._inner(gpus) for row, gpus in present.items() if gpus & self._mask}
        leads = {row: self._inner(gpus) for row, gpus in first.items() if gpus & self._mask and row in amounts}
        for row, gpus in stage.place(
            self.servers, here, amounts, leads, [row for row in sorted(stay) if row in amounts]
        ).items():
            yield row, self._outer(gpus)

    def _inner(self, gpus: Gpus) -> Gpus:
        found, gpus = 0, gpus & self._mask
        while gpus:
            here, begin, inner, kept = self._of[self._server[(gpus & -gpus).bit_length() - 1]]
            own = (gpus & here) >> begin
            gpus &= ~here
            found |= (own if kept is None else sum(1 << n for n, at in enumerate(kept) if own >> at & 1)) << inner
        return found

    def _outer(self, gpus: Gpus) -> Gpus:
        found = 0
        while gpus:
            here, begin, inner, kept = self._at[(gpus & -gpus).bit_length() - 1]
            own = gpus >> inner & ((1 << here.bit_count()) - 1)
            gpus &= ~(own << inner)
            found |= (own if kept is None else sum(1 << at for n, at in enumerate(kept) if own >> n & 1)) << begin
        return found
