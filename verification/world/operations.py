"""Durable operations: of a controller on its store, of an agent on its disk. Each is counted, and given ones fail.

*Crash anywhere* (`anywhere`) replays one history, and fails another of its operations each time. A process may die before the
operation or after it. For a store behind a network, the answer may also get lost, with or without effect; the operation may be
applied late, after its process has continued; or it may be refused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from elasticd.controller.store import StoreUnavailable

T = TypeVar("T")


class How(enum.Enum):
    """The failure at an operation."""

    BEFORE = "before"  # the process dies, and nothing is done
    AFTER = "after"  # it is done, and the process dies before the answer
    LOST = "lost"  # nothing is done, and no answer arrives
    UNHEARD = "unheard"  # it is done, and no answer arrives
    LATE = "late"  # no answer arrives; it is done after the next operation on that store
    REFUSED = "refused"  # nothing is done, and the answer says so

    @property
    def kills(self) -> bool:
        """Whether the process dies."""
        return self in (How.BEFORE, How.AFTER)


NO_ANSWER = StoreUnavailable("no answer within 0.5 s", outcome_unknown=True)
REFUSAL = StoreUnavailable("it takes nothing at present")


class Crashed(Exception):
    """The process must die at this operation."""


@dataclass(frozen=True)
class Operation:
    """A durable operation."""

    who: str
    what: str
    hows: frozenset[How]  # failures that are possible at it


PROCESS = frozenset((How.BEFORE, How.AFTER))  # of a local disk
STORE = frozenset(How) - {How.LATE}
SHARED = frozenset(How)  # of a store behind a network


class Operations:
    """Counts the operations of one history, and fails given ones."""

    def __init__(self, strikes: Mapping[int, How], on_strike: Callable[[Operation, How], None]) -> None:
        """`strikes`: failure by the operation's number, from 1. `on_strike` is called just before a failure."""
        self._strikes = dict(strikes)
        self._on_strike = on_strike
        self._late: list[Callable[[], object]] = []
        self.log: list[Operation] = []

    def run(self, who: str, what: str, hows: Iterable[How], act: Callable[[], T]) -> T:
        """Carry an operation out; returns the result of `act`. Raises Crashed, StoreUnavailable, and the exceptions of `act`."""
        operation = Operation(who, what, frozenset(hows))
        self.log.append(operation)
        how = self._strikes.get(len(self.log))
        if how is not None and how in operation.hows:
            self._on_strike(operation, how)
        late: list[Callable[[], object]] = []
        if How.LATE in operation.hows:
            late, self._late = self._late, []
        try:
            return self._run(how if how in operation.hows else None, act)
        finally:
            for call in late:
                call()

    def _run(self, how: How | None, act: Callable[[], T]) -> T:
        if how is How.BEFORE:
            raise Crashed
        if how is How.REFUSED:
            raise StoreUnavailable(str(REFUSAL))
        if how is How.LATE:
            self._late.append(act)
        if how in (How.LOST, How.LATE):
            raise StoreUnavailable(str(NO_ANSWER), outcome_unknown=True)
        done = act()
        if how is How.AFTER:
            raise Crashed
        if how is How.UNHEARD:
            raise StoreUnavailable(str(NO_ANSWER), outcome_unknown=True)
        return done
