"""Scheduling decision for a snapshot, with the changes to order now; a policy's error becomes PolicyFailed. Pure."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.errors import RequestRefused
from ...scheduler.deadline_guard import Deadlines
from ...scheduler.decision import Stage, Step
from ...scheduler.host_capacity import Room
from ...scheduler.pipeline import Decision, decide
from ...scheduler.plan import Change, at_once, plan
from ...scheduler.scheduler import Scheduler
from ..jobs.job import Job
from ..state.planning import Snapshot
from .avoidance import elsewhere
from .growth import unmoved
from .slow_gpus import narrowed, unless_given_nothing, without_slow


class PolicyFailed(RequestRefused):
    """Error of a policy or of a stage around it: it raised an exception, or its decision is impossible.

    `where` identifies the fault: policy, exception type and code location.
    """

    def __init__(self, policy: str, error: Exception) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        at = "".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in last)
        super().__init__(f"policy {policy} raised {type(error).__name__} ({at}): {error}")
        self.where = f"{policy} {type(error).__name__} {at}"


@dataclass(frozen=True)
class Decided:
    """Scheduling decision, with the changes that can be ordered together now."""

    decision: Decision
    policy: str
    changes: tuple[Change, ...]
    unfinished: bool  # further changes wait until `changes` are carried out
    stuck: tuple[
        Job, ...
    ]  # jobs that cannot start on the GPUs chosen for them (`avoidance`): decide again without them
    # Jobs with the most GPUs that each can use (`avoidance`, `slow_gpus`): decide again.
    cramped: tuple[tuple[Job, int], ...]
    divided: Decision  # the scheduler's decision, before jobs were kept off tainted GPUs
    kept_off: Decision  # the decision without tainted GPUs, before jobs avoided servers
    again: frozenset[int] = frozenset()  # rows of jobs that cannot be moved, and restart on other GPUs (`growth`)

    def why(self, row: int) -> str:
        """Return the reason, for users, why the job has no more GPUs; computed only for jobs that are shown."""
        try:
            reason = self.decision.why(row)
        except Exception as error:  # a policy is a plug-in: its errors must not end the controller
            return str(PolicyFailed(self.policy, error))
        return reason.text if reason is not None else ""

    def every(self, row: int) -> tuple[str, ...]:
        """Return all reasons why the job has no more GPUs, that of `why` first."""
        try:
            return tuple(reason.text for reason in self.decision.every(row))
        except Exception as error:
            return (str(PolicyFailed(self.policy, error)),)

    def steps(self, row: int) -> tuple[Step, ...]:
        """Return the job's share (GPUs) after each stage that decided about the job."""
        found = self.divided.steps(row)
        for stage, before, after in (
            (Stage.EXCLUDED, self.divided, self.kept_off),
            (Stage.AVOIDED, self.kept_off, self.decision),
        ):
            if before.shares[row] != after.shares[row]:
                found = (*found, Step(stage, int(after.shares[row])))
        return found


def _as_it_is(decision: Decision) -> Decision:
    return decision


def decided(
    scheduler: Scheduler,
    seen: Snapshot,
    rng: random.Random,
    mend: Callable[[Decision], Decision] = _as_it_is,
    deadlines: Deadlines | None = None,
) -> Decided:
    """Return the decision of `scheduler` for the snapshot, and the changes that carry it out.

    `mend` removes GPUs that take no new work from the decision; `deadlines` is passed to `decide`. Raises PolicyFailed if the
    scheduler raises any error, or if two jobs would get the same GPU or a share does not match its GPUs.
    """
    try:
        decision = decision_of(scheduler, seen, rng, deadlines)
        if (wider := unless_given_nothing(seen, decision)) is not seen:
            seen = wider
            decision = decision_of(scheduler, seen, rng, deadlines)
        _check(decision, seen.view.total_gpus)
        kept_off = mend(decision)
        divided, better = decision, elsewhere(seen, kept_off)
        faster = without_slow(seen, better.decision, bool(scheduler.stages.packing))
        decision, again = unmoved(seen, faster.decision)
        changes, unfinished = at_once(
            seen.view.placements, plan(seen.view, decision), seen.held, Room(seen.view) if seen.view.needs else None
        )
    except Exception as error:  # a policy is a plug-in: its errors must not end the controller
        raise PolicyFailed(scheduler.policy.name, error) from error
    return Decided(
        decision,
        scheduler.policy.name,
        changes,
        unfinished,
        better.stuck,
        (*better.cramped, *faster.cramped),
        divided,
        kept_off,
        again,
    )


def decision_of(
    scheduler: Scheduler, seen: Snapshot, rng: random.Random, deadlines: Deadlines | None = None
) -> Decision:
    """Return the decision of `scheduler` for the snapshot, unchecked. Raises any error that the policy raises."""
    stages, seen = scheduler.stages, narrowed(seen)
    placement = stages.placement
    return decide(seen.view, scheduler.policy, rng, stages.packing, seen.first, placement, deadlines, seen.tenancy)


def _check(decision: Decision, total: int) -> None:
    """Raise ValueError if the decision cannot be carried out: a GPU is given twice, or a share does not match its GPUs."""
    taken, placed = 0, 0
    shares = decision.shares.tolist()
    for row, gpus in decision.placements.items():
        number = gpus.bit_count()
        taken, placed = taken | gpus, placed + number
        if number != shares[row] or taken.bit_length() > total:
            raise ValueError(f"row {row} cannot have the GPUs {gpus:b} of {total} for a share of {shares[row]}")
    if taken < 0 or taken.bit_count() != placed:
        raise ValueError(f"{placed} GPUs are given to jobs, and are {taken.bit_count()}: two jobs have the same one")
    if placed != int(decision.shares.sum()) or (decision.shares < 0).any():
        raise ValueError(f"shares of {int(decision.shares.sum())} GPUs are placed on {taken.bit_count()}")
