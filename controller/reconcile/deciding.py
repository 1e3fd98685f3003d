"""What the scheduler makes of a snapshot, or what went wrong there. Pure."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.errors import RequestRefused
from ...scheduler.deadlines.keeping import Deadlines
from ...scheduler.decision import Stage, Step
from ...scheduler.pipeline import Decision, decide
from ...scheduler.plan import Change, at_once, plan
from ...scheduler.scheduler import Scheduler
from ..jobs.job import Job
from .avoiding import elsewhere
from .growth import unmoved
from .snapshot import Snapshot


class PolicyFailed(RequestRefused):
    """A policy, or a stage around it, has raised or has decided something impossible. `where`: the same for the same fault."""

    def __init__(self, policy: str, error: Exception) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        at = "".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in last)
        super().__init__(f"policy {policy} raised {type(error).__name__} ({at}): {error}")
        self.where = f"{policy} {type(error).__name__} {at}"


@dataclass(frozen=True)
class Decided:
    """A decision, and the changes that can be ordered together now."""

    decision: Decision
    policy: str
    changes: tuple[Change, ...]
    unfinished: bool  # other changes wait for these
    stuck: tuple[Job, ...]  # these cannot begin with what they would get (`avoiding`): decide again without them
    cramped: tuple[tuple[Job, int], ...]  # these can have no more than so many GPUs (`avoiding`): likewise
    divided: Decision  # before anybody was kept off GPUs
    kept_off: Decision  # and before anybody avoided a server
    again: frozenset[int] = frozenset()  # rows that cannot be moved, and start again elsewhere (`growth`)

    def why(self, row: int) -> str:
        """Why a job has no more, for people: asked for those alone that somebody looks at."""
        try:
            reason = self.decision.why(row)
        except Exception as error:  # a policy is a plug-in, as above
            return str(PolicyFailed(self.policy, error))
        return reason.text if reason is not None else ""

    def every(self, row: int) -> tuple[str, ...]:
        """Each reason that there is, that of `why` first."""
        try:
            return tuple(reason.text for reason in self.decision.every(row))
        except Exception as error:
            return (str(PolicyFailed(self.policy, error)),)

    def steps(self, row: int) -> tuple[Step, ...]:
        """The share of a job after each stage that decided about it."""
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
    """Ask `scheduler`. `deadlines`: as for `decide`. `mend`: keeps off GPUs that take no new work. Raises PolicyFailed."""
    try:
        decision = decision_of(scheduler, seen, rng, deadlines)
        _check(decision, seen.view.total_gpus)
        kept_off = mend(decision)
        divided, better = decision, elsewhere(seen, kept_off)
        decision, again = unmoved(seen, better.decision)
        changes, unfinished = at_once(seen.view.placements, plan(seen.view, decision), seen.held)
    except Exception as error:  # a policy is a plug-in: what it raises for one job must not end the controller for all
        raise PolicyFailed(scheduler.policy.name, error) from error
    return Decided(
        decision,
        scheduler.policy.name,
        changes,
        unfinished,
        better.stuck,
        better.cramped,
        divided,
        kept_off,
        again,
    )


def decision_of(
    scheduler: Scheduler, seen: Snapshot, rng: random.Random, deadlines: Deadlines | None = None
) -> Decision:
    """What `scheduler` makes of an snapshot. Raises whatever it raises."""
    stages = scheduler.stages
    placement = stages.placement
    return decide(seen.view, scheduler.policy, rng, stages.packing, seen.first, placement, deadlines, seen.tenancy)


def _check(decision: Decision, total: int) -> None:
    """Raises ValueError if this cannot be carried out by anybody."""
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
