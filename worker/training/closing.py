"""End of a worker: after its job's last step, or because the job is preempted. Pure.

A worker ends between two steps. The state of a preempted job is saved before, if this worker is the one that saves
(`suspension`). The leader of a job that is over writes a checkpoint of the end, so that code after the loop can run
again. Then the worker waits, for a limited time, until its agent has the last status.
"""

from __future__ import annotations

from collections.abc import Callable

from ...protocol import times
from ..events import (
    Action,
    CheckpointFailed,
    CheckpointSaved,
    Continue,
    ExitScript,
    RetireGroup,
    SaveCheckpoint,
)
from ..membership import machine as ms
from ..reporting import Reporting
from .doing import Activity, Doing
from .generation import Generation
from .position import Position
from .saving import Checkpoints
from .suspension import Suspension, Verdict


class Closing:
    """The end of one worker.

    `follow` carries out actions of the membership. `is_whole`: whether a divided state is together where it is saved.
    """

    def __init__(
        self,
        activity: Activity,
        position: Position,
        generation: Generation,
        checkpoints: Checkpoints,
        suspension: Suspension,
        membership: ms.Membership,
        reporting: Reporting,
        follow: Callable[[float, list[ms.Action]], list[Action]],
        is_whole: Callable[[], bool],
    ) -> None:
        self._activity = activity
        self._position = position
        self._generation = generation
        self._checkpoints = checkpoints
        self._suspension = suspension
        self._membership = membership
        self._reporting = reporting
        self._follow = follow
        self._is_whole = is_whole
        # last action for the thread, after the save or the acknowledgement of the last report
        self._end: Action = Continue()
        self._last_sequence = 0

    @property
    def decided(self) -> bool:
        """Whether this worker ends, in whatever generation it is."""
        doing = self._activity.doing
        suspended = doing is Doing.SAVING and bool(self._suspension)
        return suspended or doing in (Doing.STANDING_BY, Doing.CLOSING, Doing.OVER)

    def suspended(self, now: float) -> list[Action]:
        """Handle preemption between two steps: save the state if this worker is to save it; else stand by or end."""
        self._suspension.give_up_at = None
        position, roster = self._position, self._generation.roster
        durable = self._checkpoints.durable == (position.applied, position.epoch)
        to_save = self._checkpoints.wanted and position.whole and position.next_step > 0 and not durable
        to_save = to_save and self._is_whole()
        if not to_save or roster is None:
            return self.close(now, ExitScript(0))
        verdict = self._suspension.verdict(now, roster, position.applied)
        if verdict is Verdict.END:
            return self.close(now, ExitScript(0))
        retire: list[Action] = []
        if self._activity.doing is not Doing.STANDING_BY:
            retire.append(RetireGroup(roster.generation))
        if verdict is Verdict.SAVE:
            return [*retire, *self._save_and_end(now, position.epoch, ExitScript(0))]
        if self._activity.doing is not Doing.STANDING_BY:
            self._activity.go(now, Doing.STANDING_BY)
        return retire

    def finish(self, now: float, epochs: int) -> list[Action]:
        """End after the script's loop, when all transfers to other workers are complete."""
        self._position.epoch = epochs
        whole = self._position.whole and self._position.finished and self._is_whole()
        if self._checkpoints.wanted and self._generation.leads and whole:
            return self._save_and_end(now, epochs, Continue())
        return self.close(now, Continue())

    def save(self, now: float, epoch: int) -> SaveCheckpoint:
        """Begin to save the applied state."""
        return self._checkpoints.begin(now, self._position.applied, epoch, self._membership.generation)

    def _save_and_end(self, now: float, epoch: int, end: Action) -> list[Action]:
        """Save the applied state, and then end with the action `end`."""
        self._end = end
        self._activity.go(now, Doing.SAVING)
        return [self.save(now, epoch)]

    def saved_or_not(self, now: float, fact: CheckpointSaved | CheckpointFailed) -> list[Action]:
        """Handle the result of a checkpoint."""
        if not self._checkpoints.ended(now, fact, self._membership.generation):
            return []
        self._reporting.change(now)
        if self._activity.doing is not Doing.SAVING or not self._checkpoints.is_newest(fact.number):
            return []
        if isinstance(fact, CheckpointFailed) and isinstance(self._end, ExitScript):
            self._suspension.failed(now)
            self._activity.go(now, Doing.STANDING_BY)
            return self.suspended(now)
        return self.close(now, self._end)

    def close(self, now: float, end: Action, unfinished: bool = False) -> list[Action]:
        """Wait until the agent has the last status, and end with the action `end`.

        `unfinished`: the script has not finished its loop.
        """
        actions: list[Action] = []
        if end == Continue() and not unfinished:
            actions = self._follow(now, self._membership.handle(now, ms.LoopEnded()))
        self._end = end
        self._suspension.give_up_at = None
        self._activity.go(now, Doing.CLOSING)
        self._reporting.change(now)
        self._last_sequence = self._reporting.next_sequence
        return actions

    def acknowledged(self, now: float) -> list[Action]:
        """Handle the agent's acknowledgement of a status."""
        if self._activity.doing is Doing.CLOSING and self._reporting.has_arrived(self._last_sequence):
            return self._over(now)
        return []

    def pass_time(self, now: float) -> list[Action]:
        """Handle time while this worker stands by, or waits for the acknowledgement of its last report."""
        if self._activity.doing is Doing.CLOSING:
            return self._over(now) if now >= self._activity.since + times.LAST_REPORT_TIMEOUT_S else []
        if now >= self._activity.since + times.MOST_SAVE_S:
            return self.close(now, ExitScript(0))  # no message has come for too long
        return self.suspended(now)  # this worker may be the one to try again

    def _over(self, now: float) -> list[Action]:
        self._activity.go(now, Doing.OVER)
        return [self._end]
