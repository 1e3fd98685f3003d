"""Division of the optimizer state among workers: owners, mirrors, and moves when the workers change. Pure.

Each interval has an *owner*, and its owner's *mirror* keeps the same state (Rajbhandari et al., 2020, ZeRO-1, has
owners alone). Both make the same update from the same gradient, so a mirror costs no message. After the loss of a
worker its mirror has the state of the intervals that it owned. A mirror is on another server than its owner if possible.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .intervals import Grid, Interval, Move, Owned, Owners, common, divide, divide_again


class StateLost(Exception):
    """Neither the owner nor the mirror of some elements has their state."""


@dataclass(frozen=True)
class Division:
    """Owners of all elements in ascending order, and the mirror of each owner; a single worker has none."""

    owners: Owners
    mirrors: Mapping[str, str]

    def holders(self, interval: Owned) -> tuple[str, ...]:
        """Return the workers that keep the state of an owner's interval."""
        mirror = self.mirrors.get(interval.owner)
        return (interval.owner,) if mirror is None else (interval.owner, mirror)

    def kept_by(self, worker: str) -> list[Interval]:
        """Return the intervals that a worker owns or mirrors, in ascending order."""
        return [each.interval for each in self.owners if worker in self.holders(each)]

    def plain(self) -> dict[str, Any]:
        """Return the division as plain values, which `of_plain` takes."""
        owners = [[each.interval.flat, each.interval.begin, each.interval.end, each.owner] for each in self.owners]
        return {"owners": owners, "mirrors": dict(self.mirrors)}

    @staticmethod
    def of_plain(values: Mapping[str, Any]) -> Division:
        """Return the division that `plain` has described."""
        owners = tuple(Owned(Interval(flat, begin, end), owner) for flat, begin, end, owner in values["owners"])
        return Division(owners, dict(values["mirrors"]))


def first_division(grid: Grid, workers: Sequence[str], servers: Sequence[str]) -> Division:
    """Return the division of a state that does not exist yet. servers: of the workers, in the same order."""
    return Division(divide(grid, workers), mirrors_of(workers, servers))


def next_division(grid: Grid, present: Division, workers: Sequence[str], servers: Sequence[str]) -> Division:
    """Return the division after a change of the workers, in which owners keep as much as their new share allows."""
    return Division(divide_again(grid, present.owners, workers), mirrors_of(workers, servers))


def mirrors_of(workers: Sequence[str], servers: Sequence[str]) -> dict[str, str]:
    """Return the mirror of each worker: one that mirrors few others, on another server if possible."""
    count = dict.fromkeys(workers, 0)
    found: dict[str, str] = {}
    for position, (worker, server) in enumerate(zip(workers, servers, strict=True)):
        others = [(position + ahead) % len(workers) for ahead in range(1, len(workers))]
        if not others:
            break
        best = min(
            others, key=lambda other: (count[workers[other]] > 1, servers[other] == server, count[workers[other]])
        )
        found[worker] = workers[best]
        count[workers[best]] += 1
    return found


def surviving(division: Division, present: Collection[str]) -> Division:
    """Return the division in which each interval's owner is a worker that has its state.

    present: workers with the state of the step in question. Raises StateLost.
    """
    owners: list[Owned] = []
    mirrors: dict[str, str] = {}
    for each in division.owners:
        holders = [worker for worker in division.holders(each) if worker in present]
        if not holders:
            lost = " and ".join(division.holders(each))
            raise StateLost(f"the optimizer state of {each.interval.size} elements was lost with {lost}")
        owners.append(Owned(each.interval, holders[0]))
    return Division(tuple(owners), mirrors)


def moves(division: Division, present: Collection[str], target: Division) -> list[Move]:
    """Return the moves through which each worker gets its state, in ascending order of elements and workers.

    Raises StateLost if elements have no holder in `present`.
    """
    surviving(division, present)
    found: list[Move] = []
    position = 0
    for new in target.owners:
        while position < len(division.owners):
            old = division.owners[position]
            if (part := common(old.interval, new.interval)) is not None:
                holders = [worker for worker in division.holders(old) if worker in present]
                found += [Move(part, holders[0], worker) for worker in target.holders(new) if worker not in holders]
            if (old.interval.flat, old.interval.end) > (new.interval.flat, new.interval.end):
                break
            position += 1
    return found
