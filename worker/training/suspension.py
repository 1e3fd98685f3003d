"""Choice of the worker that saves the state of a preempted job, and of those that wait until it is saved. Pure.

A preempted job's workers end between two steps, and with them its state, unless one of them has saved it. The worker
named by the controller saves; if it is not in the roster (it has just left), the leader does. A save may fail: a disk
is full, a file system does not answer, the saver is lost. So one worker on each server *stands by*, if the controller
requests it (`controller.saving`): it keeps the state until it learns that the state is saved, or that it has to save
the state itself. A saver that has failed stands by, too, and tries again as long as it is the named one. The time that
the agent gives a worker to end limits all this.

A step in progress may take `suspend_patience_s`. If it has not ended then, the saver may be busy elsewhere (the leader
evaluates): the first of the other workers saves, too.
"""

from __future__ import annotations

import enum

from ...protocol import times
from ...protocol.messages import Suspend
from ...protocol.model import Roster, WorkerId


class Verdict(enum.Enum):
    """Next activity of a preempted worker with the state at a boundary."""

    END = "others have saved the state, or do"
    SAVE = "it saves the state, and ends"
    STAND_BY = "it waits until the state is saved"


class Suspension:
    """Known facts about the preemption of one worker's job."""

    def __init__(self, me: WorkerId) -> None:
        self._me = me
        self._asked: Suspend | None = None
        self._again_at = 0.0
        self.give_up_at: float | None = None  # when to give up the step in progress
        self.stood_up = False  # whether other workers, perhaps the saver, did not come to that step in time
        self.failures = 0  # number of this worker's failed saves

    def __bool__(self) -> bool:
        """Return whether the job is preempted."""
        return self._asked is not None

    def ask(self, now: float, suspend: Suspend, longest_step_s: float) -> bool:
        """Take note of a request to end. Returns whether it is the first."""
        first = self._asked is None
        if first:
            self.give_up_at = now + times.suspend_patience_s(longest_step_s)
        self._asked = suspend
        return first

    def failed(self, now: float) -> None:
        """Take note that this worker could not save the state."""
        self.failures += 1
        self._again_at = now + times.SAVE_RETRY_S

    def again_at(self, roster: Roster) -> float | None:
        """Return when this worker, which has failed, is to try again; None if another worker is to save."""
        return self._again_at if self.saves(roster) else None

    def verdict(self, now: float, roster: Roster, step: int) -> Verdict:
        """Return the next activity of this worker, which has the state after `step`."""
        if self.covers(step):
            return Verdict.END
        again_at = self.again_at(roster)
        if again_at is not None:
            return Verdict.SAVE if now >= again_at else Verdict.STAND_BY
        return Verdict.STAND_BY if self.stands_by(roster) else Verdict.END

    def was_away(self, away_s: float) -> None:
        """Extend the limit by a time for which the whole process was stopped."""
        if self.give_up_at is not None:
            self.give_up_at += away_s

    def covers(self, step: int) -> bool:
        """Return whether another worker has saved the state after `step`.

        The state of an epoch's last step may have been saved before the script's code between two epochs, which is not
        known here. Such code (an evaluation) runs again after the next start, as after every other checkpoint of that
        step.
        """
        saved = self._asked.saved if self._asked is not None else None
        return saved is not None and saved >= step

    def saves(self, roster: Roster) -> bool:
        """Return whether this worker saves."""
        saver = self._saver(roster)
        stand_in = next((worker for worker in roster.workers if worker != saver), None)
        return self._me == saver or (self.stood_up and self._me == stand_in)

    def stands_by(self, roster: Roster) -> bool:
        """Return whether this worker waits until the state is saved, as the first on its server except for the saver."""
        if self._asked is None or not self._asked.stand_by:
            return False
        saver = self._saver(roster)
        servers = {member.worker: member.gpu.server for member in roster.members}
        return self._me == next(
            (worker for worker in roster.workers if worker != saver and servers[worker] == servers[self._me]), None
        )

    def _saver(self, roster: Roster) -> WorkerId:
        saver = self._asked.saver if self._asked is not None else None
        if saver is None or saver not in roster.workers:
            saver = roster.leader
        return saver
