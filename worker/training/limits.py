"""How long a worker's training thread takes, and how long it may (times: `protocol.times`). Pure.

A worker that hangs must be told from one that waits for it, and from a slow one. What a worker does alone (*its part* of a
step, the script's code between two steps, a checkpoint) has a limit of its own, after which it ends itself. Where it waits for
the others the limit is longer than all that one of them may do alone: so the one that hangs ends first, and the others only
recover.

Where *all* members wait for each other, nobody hangs: what they send does not arrive. A worker cannot know that of the others. It
tells how long it has waited once that is longer than an exchange should take (`stall_limit_s`), and the controller compares.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from ...protocol import times
from ..events import Limits

PARTS_KEPT = 32
PARTS_NEEDED = 3  # the first part of a step is often the slowest: compilers, caches
BOUNDARIES_KEPT = 128
PAUSES_KEPT = 8  # evaluations come once in many steps


class Durations:
    """What a worker has measured of itself."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parts: deque[float] = deque(maxlen=PARTS_KEPT)  # seconds for one virtual worker
        self._steps: deque[float] = deque(maxlen=BOUNDARIES_KEPT)
        self._pauses: deque[float] = deque(maxlen=PAUSES_KEPT)
        self._in_first_pause = False
        self._state_bytes = 0
        self._stalls = 0  # since the last step

    def expect(self, state_bytes: int) -> None:
        """So large is the job's state."""
        self._state_bytes = state_bytes

    def part_computed(self, took_s: float, hosted: int) -> None:
        """Its own part of a step, with so many virtual workers."""
        if hosted:
            self._parts.append(took_s / hosted)

    def step_ended(self, took_s: float) -> None:
        """From one boundary to the next."""
        self._steps.append(took_s)
        self._stalls = 0

    def stalled(self) -> None:
        """A step was given up in which all had waited for longer than `stall_limit_s`."""
        self._stalls += 1

    def pause_begins(self) -> bool:
        """Is it the first one? How long the script's code between two epochs takes is not known yet."""
        self._in_first_pause = not self._pauses
        return self._in_first_pause

    def pause_ended(self, took_s: float) -> None:
        """From the end of an epoch's batches to the next one's."""
        self._in_first_pause = False
        self._pauses.append(took_s)

    @property
    def longest_step_s(self) -> float:
        """The longest lately from one moment at which the state could be saved to the next; 0 if none is known. In the first
        pause, what such a one may take."""
        first_s = times.FIRST_PAUSE_S if self._in_first_pause else 0.0
        return max(first_s, *self._steps, *self._pauses, 0.0)

    def step_limit_s(self, hosted: int) -> float:
        """For its own part of a step with so many virtual workers."""
        if self._limits.step_timeout_s is not None:
            return self._limits.step_timeout_s
        usual_s = self._usual_s(hosted)
        return max(times.LEAST_STEP_TIMEOUT_S, usual_s) if usual_s is not None else times.FIRST_STEP_TIMEOUT_S

    def come_out_limit_s(self, hosted: int) -> float:
        """For the thread to come out of an abandoned communicator: its device may still compute the part of the step."""
        usual_s = self._limits.step_timeout_s or self._usual_s(hosted)
        return max(times.COME_OUT_TIMEOUT_S, usual_s if usual_s is not None else times.FIRST_STEP_TIMEOUT_S)

    def _usual_s(self, hosted: int) -> float | None:
        """A multiple of what such a part took so far; None: that is not known yet."""
        if len(self._parts) < PARTS_NEEDED:
            return None
        return times.STEP_TIMEOUT_FACTOR * median(self._parts) * max(hosted, 1)

    @property
    def pause_limit_s(self) -> float:
        """For the script's code between two steps, and for a checkpoint."""
        return self._limits.pause_timeout_s

    def others_limit_s(self, hosted: int) -> float:
        """For what the others have to do before a step can end."""
        step_s = self._limits.step_timeout_s
        if step_s is None:  # one of them may have measured nothing yet
            step_s = max(self.step_limit_s(hosted), times.FIRST_STEP_TIMEOUT_S)
        return times.others_timeout_s(step_s, self._limits.pause_timeout_s)

    def stall_limit_s(self, hosted: int, state: bool) -> float:
        """For what all others have computed to arrive; twice as long after each time that this was too short.

        state: the job's state is to arrive. Its size says how long that takes at most, and where nothing has been measured yet,
        how long a step's gradients may: these are no larger.
        """
        bytes_s = min(self._state_bytes / times.SLOW_NETWORK_BYTES_S, times.FIRST_STEP_TIMEOUT_S)
        usual_s = self._limits.step_timeout_s
        if usual_s is None:
            known = len(self._steps) >= PARTS_NEEDED
            usual_s = times.STALL_TIMEOUT_FACTOR * median(self._steps) if known else bytes_s
        least_s = max(times.STALL_TIMEOUT_S, bytes_s) if state else times.STALL_TIMEOUT_S
        longer = 2.0 ** min(self._stalls, 30)
        return min(max(least_s, usual_s) * longer, self.others_limit_s(hosted))
