"""Operations on what survives a process: of a controller on its store, of an agent on its disk. Each is counted, and some fail.

*Crash anywhere* (`anywhere`) plays one history again and again, and lets another of its operations fail each time. A process may
die before it or after it. Of the store, an answer may also get lost, whether or not the operation was carried out; it may be
carried out late, when its process has gone on; or it may be refused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from elasticd.controller.store import StoreUnavailable

T = TypeVar("T")


class How(enum.Enum):
    """What happens at an operation."""

    BEFORE = "before"  # its process dies, and nothing is done
    AFTER = "after"  # it is done, and its process dies before it hears that
    LOST = "lost"  # nothing is done, and its process hears nothing
    UNHEARD = "unheard"  # it is done, and its process hears nothing
    LATE = "late"  # its process hears nothing; it is carried out after the next operation on that store
    REFUSED = "refused"  # nothing is done, and its process is told so

    @property
    def kills(self) -> bool:
        """Does the process die?"""
        return self in (How.BEFORE, How.AFTER)


NO_ANSWER = StoreUnavailable("no answer within 0.5 s", outcome_unknown=True)
REFUSAL = StoreUnavailable("it takes nothing at present")


class Crashed(Exception):
    """The process is to die at this operation."""


@dataclass(frozen=True)
class Operation:
    """One that was asked for."""

    who: str
    what: str
    hows: frozenset[How]  # what can happen at it


PROCESS = frozenset((How.BEFORE, How.AFTER))  # of a disk of one's own
STORE = frozenset(How) - {How.LATE}
SHARED = frozenset(How)  # of a store behind a network


class Operations:
    """Of one history."""

    def __init__(self, strikes: Mapping[int, How], on_strike: Callable[[Operation, How], None]) -> None:
        """`strikes`: what happens at which operation; the first is number 1. `on_strike` is told just before."""
        self._strikes = dict(strikes)
        self._on_strike = on_strike
        self._late: list[Callable[[], object]] = []
        self.log: list[Operation] = []

    def run(self, who: str, what: str, hows: Iterable[How], act: Callable[[], T]) -> T:
        """Carry an operation out: what `act` returns. Raises Crashed, StoreUnavailable, and what `act` raises."""
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
