"""From a decision to what has to change, in an order in which it can be carried out: GPUs are given back before they are taken.

Jobs that exchange GPUs wait for each other. Then one of them first shrinks to what it keeps, or where it keeps nothing stops and
starts again on its new GPUs; so no order of events leaves them waiting for ever. That happens only where jobs have to move.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .pipeline import Decision
from .view import ClusterView, Gpus


class ChangeKind(enum.Enum):
    """What happens to a job. Changes come in this order, except that one waits for those that free its GPUs."""

    STOP = "stop"
    RESIZE = "resize"
    MIGRATE = "migrate"  # none of its GPUs stays
    START = "start"


@dataclass(frozen=True)
class Change:
    """A job's new GPUs, by row of the view; empty: it gives all back."""

    kind: ChangeKind
    row: int
    gpus: Gpus


def plan(view: ClusterView, decision: Decision) -> tuple[Change, ...]:
    """The changes from the present placements to the decided ones, for those jobs alone whose set of GPUs differs."""
    order = list(ChangeKind)
    present = view.placements
    waiting: list[tuple[tuple[int, bool, int], Change]] = []
    for row in sorted({*present, *decision.placements}):
        has, wants = present.get(row, 0), decision.placements.get(row, 0)
        share = int(view.jobs.share[row]) if row in present else 0
        if has == wants and share == has.bit_count():  # else some of its GPUs are gone
            continue
        change = Change(_kind(share > 0, has, wants), row, wants)
        takes = bool(wants & ~has)  # a job that has lost GPUs may take some although it shrinks
        waiting.append(((order.index(change.kind), takes, wants.bit_count() - share), change))
    waiting.sort(key=lambda entry: entry[0])
    return _in_turn([change for _, change in waiting], dict(present))


def _in_turn(waiting: list[Change], held: dict[int, Gpus]) -> tuple[Change, ...]:
    """The changes, each after those that free its GPUs. Changes `held`."""
    done: list[Change] = []
    used = 0
    for gpus in held.values():
        used |= gpus

    def carry_out(change: Change) -> None:
        nonlocal used
        used = used & ~held.get(change.row, 0) | change.gpus
        held[change.row] = change.gpus
        done.append(change)

    while waiting:
        blocked = []
        for change in waiting:
            if change.gpus & used & ~held.get(change.row, 0):
                blocked.append(change)
            else:
                carry_out(change)
        if len(blocked) == len(waiting):
            blocked = _give_way(blocked, held, carry_out)
        waiting = blocked
    return tuple(done)


def _give_way(blocked: list[Change], held: Mapping[int, Gpus], carry_out: Callable[[Change], None]) -> list[Change]:
    """One of those that wait for each other gives back what it does not keep. Returns what is still to be done.

    Rather one that keeps some GPUs; of several the one submitted last.
    """
    giving = [change for change in blocked if held.get(change.row, 0) & ~change.gpus]
    one = max(giving, key=lambda change: (held[change.row] & change.gpus > 0, change.row))
    kept = held[one.row] & one.gpus
    carry_out(Change(ChangeKind.RESIZE if kept else ChangeKind.STOP, one.row, kept))
    rest = Change(ChangeKind.RESIZE if kept else ChangeKind.START, one.row, one.gpus)
    return [rest if change is one else change for change in blocked]


def _kind(runs: bool, before: Gpus, after: Gpus) -> ChangeKind:
    if not after:
        return ChangeKind.STOP
    if not runs:
        return ChangeKind.START
    return ChangeKind.RESIZE if before & after else ChangeKind.MIGRATE
