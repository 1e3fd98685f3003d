"""The generation in use, as one of its members sees it: who hosts what, and who hands the state on to whom. Pure.

In its first step only those host virtual workers who have the state. It goes to the joiners meanwhile. At the next boundary the
script's registered values follow, and from then on all members host.
"""

from __future__ import annotations

import enum

from ...protocol.model import Roster, WorkerId
from ..hosting import assign
from ..state.transfer_plan import Transfer, plan_transfers


class Transfers(enum.Enum):
    """Of the state, in the generation in use."""

    NONE = "nobody needs the state"
    PENDING = "the first step brings the state to joiners"
    DUE = "the registered values follow"


class Generation:
    """That of the worker `me`; without a roster before the first."""

    def __init__(self, me: WorkerId, virtual_workers: int) -> None:
        self._me = me
        self._virtual_workers = virtual_workers
        self.roster: Roster | None = None
        self.rank = 0
        self.plan: tuple[Transfer, ...] = ()
        self.transfers = Transfers.NONE
        self.ranges: tuple[range, ...] = ()  # of virtual workers, by rank

    def enter(self, roster: Roster, holders: tuple[WorkerId, ...]) -> bool:
        """Go on in this one. Whether this worker is among those who have the state."""
        self.roster, self.rank = roster, roster.rank(self._me)
        holds = [worker in holders for worker in roster.workers]
        self.plan = _plan(roster, holds)
        self.transfers = Transfers.PENDING if self.plan else Transfers.NONE
        self.ranges = assign(self._virtual_workers, holds)
        return holds[self.rank]

    def step_applied(self) -> None:
        """Its first step, or a later one."""
        if self.transfers is Transfers.PENDING:
            self.transfers = Transfers.DUE

    def all_host(self) -> None:
        """Everybody has all of the state now."""
        assert self.roster is not None
        self.transfers, self.plan = Transfers.NONE, ()
        self.ranges = assign(self._virtual_workers, [True] * len(self.roster.members))

    def give_up(self) -> None:
        """It is broken: nobody hands anything on in it any more."""
        self.transfers, self.plan = Transfers.NONE, ()

    @property
    def leads(self) -> bool:
        return self.roster is not None and self.roster.leader == self._me

    @property
    def sends_state(self) -> bool:
        """Does this worker send the state in the first step, which is not over?"""
        return self.transfers is Transfers.PENDING and self.sends

    @property
    def joins_now(self) -> bool:
        """Does this worker get the state in the first step, which is not over?"""
        return self.transfers is Transfers.PENDING and self.joins

    @property
    def sends(self) -> bool:
        """Does this worker send the state to anybody?"""
        return any(transfer.source_rank == self.rank for transfer in self.plan)

    @property
    def joins(self) -> bool:
        """Does somebody send the state to this worker?"""
        return any(transfer.target_rank == self.rank for transfer in self.plan)

    @property
    def hosted(self) -> int:
        """How many virtual workers this worker hosts."""
        return len(self.ranges[self.rank]) if self.ranges else 0


def _plan(roster: Roster, holds: list[bool]) -> tuple[Transfer, ...]:
    """Who sends the state to whom; nobody if all have it."""
    holders = [rank for rank, has in enumerate(holds) if has]
    joiners = [rank for rank, has in enumerate(holds) if not has]
    if not joiners:
        return ()
    gpus, places = [member.gpu for member in roster.members], [member.place for member in roster.members]
    return plan_transfers(gpus, holders, joiners, places, relays=True)
