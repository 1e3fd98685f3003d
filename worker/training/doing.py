"""Activities of the training thread: the present one, the possible next ones, and their limits. Pure.

The thread does one thing at a time. An activity of its own has a limit, after which its process ends. An activity
together with other workers has a longer one, after which the thread abandons the communicator (`limits`); it then has
to leave the communicator within a third limit.
"""

from __future__ import annotations

import enum

from ...protocol import times
from ...protocol.errors import InvalidTransition
from .limits import Durations


class Doing(enum.Enum):
    """Activity of the training thread."""

    STARTING = "preparing model and data"
    WAITING = "waiting for a generation"
    LOADING = "reading a checkpoint"
    RECEIVING = "waiting for the state"
    TAKING = "receiving the state"
    JOINING = "receiving the state in a step"
    COMPUTING = "computing its part of a step"
    REDUCING = "waiting for the others in a step"
    UPDATING = "applying a step"
    EXCHANGING = "waiting for the others' registered values"
    SCRIPT = "running the script's own code between two steps"
    PAUSED = "running the script's own code between two epochs"
    SHARING = "waiting for the others between two steps"
    SENDING = "sending the state to joiners"
    SAVING = "writing a checkpoint"
    STANDING_BY = "standing by until the state is saved"
    CLOSING = "waiting for its last report to arrive"
    OVER = "over"

    __hash__ = object.__hash__  # there is one object of each; that of Enum is a call of Python's, six times in a step


ALONE = (Doing.LOADING, Doing.UPDATING, Doing.SCRIPT, Doing.PAUSED, Doing.SAVING)  # limited by `pause_timeout`
TOGETHER = (
    Doing.RECEIVING,
    Doing.TAKING,
    Doing.JOINING,
    Doing.REDUCING,
    Doing.EXCHANGING,
    Doing.SHARING,
    Doing.SENDING,
)
WITH_STATE = (Doing.TAKING, Doing.JOINING, Doing.SENDING)
IN_STEP = (Doing.COMPUTING, Doing.REDUCING)

# Next activities at a boundary. If the generation has broken, the next step is not begun: the thread waits (again).
_AFTER_BOUNDARY = frozenset(
    {Doing.COMPUTING, Doing.PAUSED, Doing.WAITING, Doing.SAVING, Doing.STANDING_BY, Doing.CLOSING}
)
TRANSITIONS: dict[Doing, frozenset[Doing]] = {
    Doing.STARTING: frozenset({Doing.WAITING, Doing.CLOSING}),
    Doing.WAITING: _AFTER_BOUNDARY | {Doing.SCRIPT, Doing.LOADING, Doing.RECEIVING},
    Doing.LOADING: _AFTER_BOUNDARY | {Doing.SCRIPT},
    Doing.RECEIVING: frozenset({Doing.TAKING, Doing.JOINING, Doing.WAITING, Doing.CLOSING}),
    Doing.TAKING: frozenset({Doing.SCRIPT, Doing.WAITING, Doing.CLOSING}),
    Doing.JOINING: frozenset({Doing.UPDATING, Doing.WAITING, Doing.CLOSING}),
    Doing.COMPUTING: frozenset({Doing.REDUCING, Doing.WAITING, Doing.SENDING, Doing.CLOSING}),
    Doing.REDUCING: frozenset({Doing.COMPUTING, Doing.UPDATING, Doing.WAITING, Doing.SENDING, Doing.CLOSING}),
    Doing.UPDATING: frozenset({Doing.SCRIPT, Doing.SENDING, Doing.CLOSING}),
    Doing.EXCHANGING: _AFTER_BOUNDARY | {Doing.SCRIPT, Doing.RECEIVING},
    Doing.SCRIPT: _AFTER_BOUNDARY | {Doing.SCRIPT, Doing.EXCHANGING, Doing.RECEIVING, Doing.SENDING, Doing.SHARING},
    Doing.SHARING: frozenset({Doing.SCRIPT, Doing.PAUSED, Doing.WAITING, Doing.CLOSING}),
    Doing.PAUSED: _AFTER_BOUNDARY
    | {Doing.RECEIVING, Doing.SENDING, Doing.SHARING},  # its registered values have been exchanged
    Doing.SENDING: frozenset({Doing.SAVING, Doing.CLOSING}),
    Doing.SAVING: frozenset({Doing.STANDING_BY, Doing.CLOSING}),
    Doing.STANDING_BY: frozenset({Doing.SAVING, Doing.CLOSING}),
    Doing.CLOSING: frozenset({Doing.OVER}),
    Doing.OVER: frozenset(),
}


class Activity:
    """Activity of one worker's training thread, and its beginning. `durations`: measured so far."""

    def __init__(self, durations: Durations, now: float) -> None:
        self._durations = durations
        self.doing = Doing.STARTING
        self.since = now
        self.come_out_by: float | None = None  # time limit for leaving an abandoned communicator

    def go(self, now: float, doing: Doing) -> None:
        """Begin an activity. Raises InvalidTransition if it cannot come next."""
        self.become(doing)
        self.since = now
        if doing not in TOGETHER:
            self.come_out_by = None

    def goes_on(self, now: float) -> None:
        """Restart the limit of the present activity, which makes progress."""
        self.since = now

    def become(self, doing: Doing) -> None:
        """Begin an activity of which the time counts from the beginning of the present one.

        Raises InvalidTransition if it cannot come next.
        """
        if doing not in TRANSITIONS[self.doing]:
            raise InvalidTransition(f"the training thread is {self.doing.value}, and cannot be {doing.value} next")
        self.doing = doing

    def abandon(self, now: float, hosted: int) -> None:
        """Let the thread leave the communicator in use, within its limit."""
        if self.doing in TOGETHER:
            self.come_out_by = now + self._durations.come_out_limit_s(hosted)

    def was_away(self, now: float, away_s: float) -> None:
        """Extend the limits by a time for which the whole process was stopped: the training thread did not hang then."""
        self.since = min(now, self.since + away_s)
        if self.come_out_by is not None:
            self.come_out_by += away_s

    def limit_at(self, hosted: int, again_at: float | None) -> float | None:
        """Return when the activity has taken too long. `again_at`: when a worker that stands by tries again to save."""
        if self.doing is Doing.COMPUTING:
            return self.since + self._durations.step_limit_s(hosted)
        if self.doing in ALONE:
            return self.since + self._durations.pause_limit_s
        if self.doing in TOGETHER and self.come_out_by is None:
            return self.since + self._durations.others_limit_s(hosted)
        if self.doing is Doing.CLOSING:
            return self.since + times.LAST_REPORT_TIMEOUT_S
        if self.doing is Doing.STANDING_BY:
            latest = self.since + times.MOST_SAVE_S
            return latest if again_at is None else min(again_at, latest)
        return None

    def waits_s(self, now: float, hosted: int, with_state: bool) -> float:
        """Return for how many seconds the thread has waited for others, if that is unusually long; else 0.

        with_state: the state has to arrive.
        """
        if self.doing not in TOGETHER or self.come_out_by is not None:
            return 0.0
        waited_s = now - self.since
        state = with_state or self.doing in WITH_STATE
        return waited_s if waited_s >= self._durations.stall_limit_s(hosted, state) else 0.0
