"""Sets and counts of a job's workers by condition, derived from each worker's record and last status.

Theory of operation
-------------------
Examples of queries are "may all members of a roster go on?" and "which worker is late first?". Without this module,
each message of one worker would require an examination of all. So a worker is examined only when its own record or
status has changed (`WorkerTable.news`, `Statuses.news`). All workers are examined when a fact about all of them
changes: another order, another committed generation, the first worker that joins, the job's end, an absence of the
controller.

Nothing here is recorded. All of it can be derived again from the table and the statuses at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...protocol.model import GpuAddress, WorkerId, WorkerPhase, WorkerStatus
from ..deadlines import Deadlines
from .records import OrderRecord, WorkerRecord, WorkerState
from .table import WorkerTable, mark


class Statuses(dict[WorkerId, WorkerStatus]):
    """Last status of each worker, with a list of those that changed since `WorkerSets` last examined them."""

    def __init__(self, known: dict[WorkerId, WorkerStatus] | None = None) -> None:
        super().__init__(known or {})
        self.news: dict[WorkerId, None] = {}

    def __setitem__(self, worker: WorkerId, status: WorkerStatus) -> None:
        super().__setitem__(worker, status)
        self.news[worker] = None

    def pop(self, worker: WorkerId, default: Any = None) -> Any:
        """Forget the status of `worker`."""
        self.news[worker] = None
        return super().pop(worker, default)


class SharedFacts(NamedTuple):
    """Facts that concern all workers of a job. When they change, all workers are examined again."""

    newest: OrderRecord | None
    committed: OrderRecord | None  # the committed order
    elastic: bool
    final: bool
    watched_s: float

    def same(self, other: SharedFacts | None) -> bool:
        """Return whether all terms are the same. Orders are compared by identity, since they are long."""
        return (
            other is not None
            and self.newest is other.newest
            and self.committed is other.committed
            and (self.elastic, self.final, self.watched_s) == (other.elastic, other.final, other.watched_s)
        )


class _Seen(NamedTuple):
    """Counted facts about one worker."""

    usable: bool  # the worker may be in a roster
    gpus: int  # GPUs that the process holds
    running: bool
    trained: bool  # has had the state, and is a member of the committed generation
    joined: bool


@dataclass
class _Whole:
    """Cached answer: does the newest order match the target, and may all its members go on?

    The result is valid while `target`, `newest` and `changes` are the same.
    """

    target: tuple[GpuAddress, ...]
    newest: OrderRecord
    changes: int
    lost: bool  # a member may not be in a roster any more
    whole: bool


Due = Callable[[WorkerRecord, WorkerStatus | None], float | None]


class WorkerSets:
    """Sets of one job's workers by condition, with counts of their GPUs."""

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, terms: SharedFacts | None) -> None:
        """Reset to no known workers."""
        self.holding: dict[WorkerId, None] = {}  # workers that have the state
        self.finished: dict[WorkerId, None] = {}  # workers that report the end of the training loop
        self.broken: dict[WorkerId, None] = {}  # workers that report a broken communicator
        # Workers that have not reported since their agents were asked to start them.
        self.unstarted: dict[WorkerId, None] = {}
        self.behind: dict[WorkerId, None] = {}  # workers that report, but do not know the newest order
        self.usable: dict[WorkerId, None] = {}
        self.due: Deadlines[WorkerId] = Deadlines()  # when the controller acts on a late worker
        self.held_gpus = self.running_gpus = self.training_gpus = self.unjoined_training_gpus = 0
        self.joined = 0  # number of workers that have joined
        self._changes = 0  # number of changes of `usable`
        self.terms = terms
        self._members = _workers(terms.committed if terms is not None else None)  # members of the committed generation
        self._named = _workers(terms.newest if terms is not None else None)  # members of the newest order
        self._outsiders = 0  # number of workers outside the newest order
        self._seen: dict[WorkerId, _Seen] = {}
        self._whole: _Whole | None = None

    def catch_up(self, table: WorkerTable, statuses: Statuses, terms: SharedFacts, due: Due) -> None:
        """Examine the workers that have changed, or all.

        `due` returns when the controller acts on a late worker (Unix time).
        """
        if not terms.same(self.terms):
            self._begin(terms)
            names = [entry.worker for entry in table]
            table.news.clear()
            statuses.news.clear()
        elif table.news or statuses.news:
            names = [*table.news, *(worker for worker in statuses.news if worker not in table.news)]
            table.news.clear()
            statuses.news.clear()
        else:
            return
        for worker in names:
            self._look(worker, table.get(worker), statuses.get(worker), due)

    def _look(self, worker: WorkerId, entry: WorkerRecord | None, status: WorkerStatus | None, due: Due) -> None:
        before = self._seen.pop(worker, None)
        if before is not None:
            self._count(worker, before, -1)
        phase = status.phase if status is not None and entry is not None else None
        usable = entry is not None and not entry.stopping and not (phase is not None and phase.over)
        if usable is not (worker in self.usable):
            self._changes += 1
        trained = entry is not None and entry.trained
        may_have = status.phase.may_have_state and status.applied is not None if status is not None else trained
        speaks = phase is not None and entry is not None and not entry.stopping
        newest = self.terms.newest if self.terms is not None else None
        mark(self.usable, worker, None, usable)
        mark(self.holding, worker, None, usable and may_have)
        mark(self.finished, worker, None, phase is WorkerPhase.FINISHED)
        mark(self.broken, worker, None, phase is WorkerPhase.BROKEN)
        mark(self.unstarted, worker, None, entry is not None and status is None and is_unstarted(entry))
        late = newest is not None and status is not None and status.order < newest.generation
        mark(self.behind, worker, None, speaks and late and phase not in (WorkerPhase.LEFT, WorkerPhase.FINISHED))
        if entry is None:
            self.due.put(worker, None)
            return
        self.due.put(worker, due(entry, status))
        held = entry.state is not WorkerState.ORDERED
        self._seen[worker] = seen = _Seen(
            usable,
            len(entry.gpus) or 1 if held else 0,
            entry.state is WorkerState.RUNNING,
            trained and worker in self._members,
            entry.joined_s is not None,
        )
        self._count(worker, seen, 1)

    def _count(self, worker: WorkerId, seen: _Seen, sign: int) -> None:
        gpus = sign * seen.gpus
        self.held_gpus += gpus
        self.running_gpus += gpus * seen.running
        self.training_gpus += gpus * seen.trained
        self.unjoined_training_gpus += gpus * (seen.running or seen.trained)
        self.joined += sign * seen.joined
        self._outsiders += sign * (worker not in self._named)

    @property
    def any_outside(self) -> bool:
        """Return whether there is a worker that the newest order does not name."""
        return self._outsiders > 0

    def lost_member(self, target: tuple[GpuAddress, ...]) -> bool:
        """Return whether a member of the newest order may not be in a roster any more."""
        found = self._about(target)
        return found is not None and found.lost

    def whole(self, target: tuple[GpuAddress, ...]) -> bool:
        """Return whether the newest order has exactly this target's GPUs, and all its members may be in a roster."""
        found = self._about(target)
        return found is not None and found.whole

    def _about(self, target: tuple[GpuAddress, ...]) -> _Whole | None:
        newest = self.terms.newest if self.terms is not None else None
        known = self._whole
        if newest is None:
            return None
        if known is None or known.changes != self._changes or known.target is not target or known.newest is not newest:
            members = newest.roster.members
            lost = any(member.worker not in self.usable for member in members)
            whole = not lost and bool(target) and {member.gpu for member in members} == set(target)
            known = self._whole = _Whole(target, newest, self._changes, lost, whole)
        return known


def is_unstarted(entry: WorkerRecord) -> bool:
    """Return whether the worker's agent was asked to start it, and has not confirmed that it runs."""
    return entry.state is WorkerState.STARTED and not entry.stopping and entry.started_s is None


def _workers(order: OrderRecord | None) -> frozenset[WorkerId]:
    return frozenset(order.roster.workers) if order is not None else frozenset()
