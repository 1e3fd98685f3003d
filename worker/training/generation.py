"""The generation in use, as one of its members sees it: who hosts what, and who hands the state on to whom. Pure.

In its first step only those host virtual workers who have the state. It goes to the joiners meanwhile. At the next boundary the
script's registered values follow. In the second step joiners compute a micro-batch that somebody else hosts, to be compared
(`crosscheck`). From then on all members host.
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
        self._unproved = (
            0  # steps until newcomers have been compared with those that gave them the state (`crosscheck`)
        )

    def enter(self, roster: Roster, holders: tuple[WorkerId, ...], proves: bool = True) -> bool:
        """Go on in this one. Whether this worker is among those who have the state. proves: newcomers are compared with these."""
        self.roster, self.rank = roster, roster.rank(self._me)
        holds = [worker in holders for worker in roster.workers]
        self.plan = _plan(roster, holds)
        self.transfers = Transfers.PENDING if self.plan else Transfers.NONE
        self._proving = bool(self.plan) and proves
        self.ranges = assign(self._virtual_workers, holds)
        return holds[self.rank]

    def step_applied(self) -> None:
        """Its first step, or a later one."""
        if self.transfers is Transfers.PENDING:
            self.transfers = Transfers.DUE
        elif self._proving:
            self._all_host()

    @property
    def proves(self) -> bool:
        """Do newcomers still have to be compared with those that gave them the state? These may not leave before."""
        return self._proving

    def values_exchanged(self, finished: bool) -> None:
        """Everybody has all of the state now. finished: no step follows, in which newcomers could prove themselves."""
        self.transfers, self.plan = Transfers.NONE, ()
        if not self._proving or finished:
            self._all_host()

    def _all_host(self) -> None:
        assert self.roster is not None
        self._proving = False
        self.ranges = assign(self._virtual_workers, [True] * len(self.roster.members))

    def give_up(self) -> None:
        """It is broken: nobody hands anything on in it any more."""
        self.transfers, self.plan, self._proving = Transfers.NONE, (), False

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
