"""Who saves the state of a preempted job, and who waits until that is done. Pure.

A preempted job's workers end between two steps, and with them its state, unless one of them has saved it. The one that is named
saves; if it is not in the roster (it has left just before), the leader. A save may fail: a disk is full, a file system does not
answer, the saver is lost. So one worker on each server *stands by*, if the controller sees to it (`controller.saving`): it holds
on to the state until it hears that it is saved, or that it is to save it itself. A saver that has failed stands by, too, and
tries again as long as it is the one that is named. The time that the agent gives a worker to end is the limit of all this.

A step in progress may take `suspend_patience_s`. If it has come to nothing then, the saver may be busy elsewhere (the leader
evaluates): the first of the others saves, too.
"""

from __future__ import annotations

import enum

from ...protocol import times
from ...protocol.messages import Suspend
from ...protocol.model import Roster, WorkerId


class Verdict(enum.Enum):
    """What a preempted worker that has the state does at a boundary."""

    END = "others have saved the state, or do"
    SAVE = "it saves the state, and ends"
    STAND_BY = "it waits until the state is saved"


class Suspension:
    """What is known of the preemption of one worker's job."""

    def __init__(self, me: WorkerId) -> None:
        self._me = me
        self._asked: Suspend | None = None
        self._again_at = 0.0
        self.give_up_at: float | None = None  # the step in progress
        self.stood_up = False  # the others did not come to that step in time: the saver may be among them
        self.failures = 0  # so often this worker has tried to save in vain

    def __bool__(self) -> bool:
        """Is the job preempted?"""
        return self._asked is not None

    def ask(self, now: float, suspend: Suspend, longest_step_s: float) -> bool:
        """This worker is asked to end. Whether that is for the first time."""
        first = self._asked is None
        if first:
            self.give_up_at = now + times.suspend_patience_s(longest_step_s)
        self._asked = suspend
        return first

    def failed(self, now: float) -> None:
        """The state could not be saved here."""
        self.failures += 1
        self._again_at = now + times.SAVE_RETRY_S

    def again_at(self, roster: Roster) -> float | None:
        """When this worker, which has failed, is to try again; None: others are named now."""
        return self._again_at if self.saves(roster) else None

    def verdict(self, now: float, roster: Roster, step: int) -> Verdict:
        """What this worker, which has the state after `step`, is to do."""
        if self.covers(step):
            return Verdict.END
        again_at = self.again_at(roster)
        if again_at is not None:
            return Verdict.SAVE if now >= again_at else Verdict.STAND_BY
        return Verdict.STAND_BY if self.stands_by(roster) else Verdict.END

    def was_away(self, away_s: float) -> None:
        """The whole process was stopped for so long."""
        if self.give_up_at is not None:
            self.give_up_at += away_s

    def covers(self, step: int) -> bool:
        """Has somebody else saved the state after `step`?

        That of an epoch's last step may have been saved before the script's lines between two epochs, of which nothing tells
        here. Such lines (an evaluation) run again after the next start, as they do after every other checkpoint of that step.
        """
        saved = self._asked.saved if self._asked is not None else None
        return saved is not None and saved >= step

    def saves(self, roster: Roster) -> bool:
        """Is it this worker that saves?"""
        saver = self._saver(roster)
        stand_in = next((worker for worker in roster.workers if worker != saver), None)
        return self._me == saver or (self.stood_up and self._me == stand_in)

    def stands_by(self, roster: Roster) -> bool:
        """Is it to wait until the state is saved, as the first on its server but for the saver?"""
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
