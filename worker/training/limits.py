"""Measured durations and limits of a worker's training thread (times: `protocol.times`). Pure.

A worker that hangs must be told apart from one that waits for it, and from a slow one. Activities of a worker alone
(*its part* of a step, the script's code between two steps, a checkpoint) have limits, after which the worker ends
itself. The limit for waiting for others is longer than everything that one of them may do alone: so the worker that
hangs ends first, and the others only recover.

If *all* members wait for each other, no worker hangs, but their messages do not arrive. A single worker cannot know
that. It reports how long it has waited once that is longer than an exchange should take (`stall_limit_s`), and the
controller compares the reports.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from ...protocol import times
from ..events import Limits

PARTS_KEPT = 32
PARTS_NEEDED = 3  # the first steps are often the slowest: compilers, caches
BOUNDARIES_KEPT = 128
PAUSES_KEPT = 8  # evaluations are rare


class Durations:
    """Durations that a worker has measured of itself."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parts: deque[float] = deque(maxlen=PARTS_KEPT)  # seconds per virtual worker
        self._steps: deque[float] = deque(maxlen=BOUNDARIES_KEPT)
        self._pauses: deque[float] = deque(maxlen=PAUSES_KEPT)
        self._in_first_pause = False
        self._state_bytes = 0
        self._stalls = 0  # number of stalls since the last step

    def expect(self, state_bytes: int) -> None:
        """Set the size of the job's state in bytes."""
        self._state_bytes = state_bytes

    def part_computed(self, took_s: float, hosted: int) -> None:
        """Record the time of this worker's part of a step with `hosted` virtual workers."""
        if hosted:
            self._parts.append(took_s / hosted)

    def step_ended(self, took_s: float) -> None:
        """Record the time from one boundary to the next."""
        self._steps.append(took_s)
        self._stalls = 0

    def stalled(self) -> None:
        """Count a step that was given up because all workers had waited for longer than `stall_limit_s`."""
        self._stalls += 1

    def pause_begins(self) -> bool:
        """Begin the script's code between two epochs. Returns whether it is the first time, with no duration known."""
        self._in_first_pause = not self._pauses
        return self._in_first_pause

    def pause_ended(self, took_s: float) -> None:
        """Record the time from the end of an epoch's batches to the beginning of the next epoch's."""
        self._in_first_pause = False
        self._pauses.append(took_s)

    @property
    def longest_step_s(self) -> float:
        """Longest recent time between two moments at which the state could be saved; 0 if unknown.

        In the first pause: at least the limit for a first pause.
        """
        first_s = times.FIRST_PAUSE_S if self._in_first_pause else 0.0
        return max(first_s, *self._steps, *self._pauses, 0.0)

    def step_limit_s(self, hosted: int) -> float:
        """Return the limit of this worker's part of a step with `hosted` virtual workers."""
        if self._limits.step_timeout_s is not None:
            return self._limits.step_timeout_s
        usual_s = self._usual_s(hosted)
        return max(times.LEAST_STEP_TIMEOUT_S, usual_s) if usual_s is not None else times.FIRST_STEP_TIMEOUT_S

    def come_out_limit_s(self, hosted: int) -> float:
        """Return the limit for leaving an abandoned communicator: the device may still compute the part of the step."""
        usual_s = self._limits.step_timeout_s or self._usual_s(hosted)
        return max(times.COME_OUT_TIMEOUT_S, usual_s if usual_s is not None else times.FIRST_STEP_TIMEOUT_S)

    def _usual_s(self, hosted: int) -> float | None:
        """Return a multiple of the usual time of a part; None if it is not known yet."""
        if len(self._parts) < PARTS_NEEDED:
            return None
        return times.STEP_TIMEOUT_FACTOR * median(self._parts) * max(hosted, 1)

    @property
    def pause_limit_s(self) -> float:
        """Limit of the script's code between two steps, and of a checkpoint."""
        return self._limits.pause_timeout_s

    def others_limit_s(self, hosted: int) -> float:
        """Return the limit of waiting for the other workers in a step."""
        step_s = self._limits.step_timeout_s
        if step_s is None:  # another worker may have measured nothing yet
            step_s = max(self.step_limit_s(hosted), times.FIRST_STEP_TIMEOUT_S)
        return times.others_timeout_s(step_s, self._limits.pause_timeout_s)

    def stall_limit_s(self, hosted: int, state: bool) -> float:
        """Return the limit for messages to arrive after all others have computed; doubled after each stall.

        state: the job's state has to arrive. Its size gives the limit of that; and of a step's gradients too, which are
        no larger, if no step has been measured yet.
        """
        bytes_s = min(self._state_bytes / times.SLOW_NETWORK_BYTES_S, times.FIRST_STEP_TIMEOUT_S)
        usual_s = self._limits.step_timeout_s
        if usual_s is None:
            known = len(self._steps) >= PARTS_NEEDED
            usual_s = times.STALL_TIMEOUT_FACTOR * median(self._steps) if known else bytes_s
        least_s = max(times.STALL_TIMEOUT_S, bytes_s) if state else times.STALL_TIMEOUT_S
        longer = 2.0 ** min(self._stalls, 30)
        return min(max(least_s, usual_s) * longer, self.others_limit_s(hosted))
