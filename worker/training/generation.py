"""The generation in use, as one of its members knows it: which rank hosts which virtual workers, and the transfers of
the state. Pure.

In its first step only workers with the state host virtual workers, while the state is sent to the joining workers. At
the next boundary the script's registered values follow. In the second step joining workers compute a micro-batch that
another worker hosts, to be compared (`crosscheck`), and in more steps where that is not enough. From then on all members
host.
"""

from __future__ import annotations

import enum

from ...protocol.model import Roster, WorkerId
from ..hosting import assign, consecutive, proportional
from ..transfer_plan import Transfer, plan_transfers


class Transfers(enum.Enum):
    """Progress of the state transfers in the generation in use."""

    NONE = "nobody needs the state"
    PENDING = "the first step brings the state to joiners"
    DUE = "the registered values follow"


class Generation:
    """The generation of the worker `me`; without a roster before the first."""

    def __init__(self, me: WorkerId, virtual_workers: int, rehosts: bool = True) -> None:
        """rehosts: the hosting may follow the paces of GPU types. Where the order of sums depends on it, it must not."""
        self._me = me
        self._virtual_workers = virtual_workers
        self._rehosts = rehosts
        self.roster: Roster | None = None
        self.rank = 0
        self.plan: tuple[Transfer, ...] = ()
        self.transfers = Transfers.NONE
        self.ranges: tuple[range, ...] = ()  # of virtual workers, by rank
        self._proving = False  # joining workers have yet to be compared with their givers (`crosscheck`)
        self.all_host = False  # every member computes its share of a step
        self._sizes: tuple[int, ...] = ()  # of the ranges from the next step on; empty: as they are

    def enter(self, roster: Roster, holders: tuple[WorkerId, ...], proves: bool = True, together: bool = False) -> bool:
        """Enter a generation.

        Returns whether this worker has the state. proves: joining workers are compared with the holders. together:
        joining workers compute in the first step, too, since all members run all loop bodies together.
        """
        self.roster, self.rank = roster, roster.rank(self._me)
        holds = [worker in holders for worker in roster.workers]
        self.plan = _plan(roster, holds)
        self.transfers = Transfers.PENDING if self.plan else Transfers.NONE
        self._proving = bool(self.plan) and proves
        hosts = [True] * len(holds) if together else holds
        self.ranges = self._hosting(roster, hosts)
        self.all_host, self._sizes = all(hosts), ()
        return holds[self.rank]

    def step_applied(self, proof_goes_on: bool = False) -> None:
        """Take note of an applied step of the generation. proof_goes_on: joining workers host nothing in the next one."""
        if self._sizes:
            self.ranges, self._sizes = consecutive(self._sizes), ()
        if self.transfers is Transfers.PENDING:
            self.transfers = Transfers.DUE
        elif self._proving and not proof_goes_on:
            self._all_host()

    def rehost(self, sizes: tuple[int, ...]) -> None:
        """Let the ranks host these numbers of virtual workers from the next step on. All members get them in the same step."""
        self._sizes = sizes if self.all_host else ()

    @property
    def proves(self) -> bool:
        """Whether joining workers still have to be compared with the holders, which may not leave before."""
        return self._proving

    def values_exchanged(self, finished: bool) -> None:
        """Take note that all members have the whole state.

        finished: no step follows in which joining workers could prove themselves.
        """
        self.transfers, self.plan = Transfers.NONE, ()
        if not self._proving or finished:
            self._all_host()

    def _all_host(self) -> None:
        assert self.roster is not None
        self._proving, self.all_host = False, True
        self.ranges = self._hosting(self.roster, [True] * len(self.roster.members))

    def _hosting(self, roster: Roster, hosts: list[bool]) -> tuple[range, ...]:
        if not self._rehosts:
            return assign(self._virtual_workers, hosts)
        return proportional(self._virtual_workers, hosts, [member.pace for member in roster.members])

    def give_up(self) -> None:
        """Take note that the generation is broken: its transfers end, and no step of it follows."""
        self.transfers, self.plan, self._proving = Transfers.NONE, (), False

    @property
    def leads(self) -> bool:
        return self.roster is not None and self.roster.leader == self._me

    @property
    def sends_state(self) -> bool:
        """Whether this worker sends the state in the first step, which is not over."""
        return self.transfers is Transfers.PENDING and self.sends

    @property
    def joins_now(self) -> bool:
        """Whether this worker receives the state in the first step, which is not over."""
        return self.transfers is Transfers.PENDING and self.joins

    @property
    def sends(self) -> bool:
        """Whether this worker sends the state to any other."""
        return any(transfer.source_rank == self.rank for transfer in self.plan)

    @property
    def joins(self) -> bool:
        """Whether another worker sends the state to this one."""
        return any(transfer.target_rank == self.rank for transfer in self.plan)

    @property
    def hosted(self) -> int:
        """Number of virtual workers that this worker hosts."""
        return len(self.ranges[self.rank]) if self.ranges else 0


def _plan(roster: Roster, holds: list[bool]) -> tuple[Transfer, ...]:
    """Return the transfers of the state; none if all members have it."""
    holders = [rank for rank, has in enumerate(holds) if has]
    joiners = [rank for rank, has in enumerate(holds) if not has]
    if not joiners:
        return ()
    gpus, places = [member.gpu for member in roster.members], [member.place for member in roster.members]
    return plan_transfers(gpus, holders, joiners, places, relays=True)
