"""Jobs that go back to their last checkpoint each time before they reach the next one come no further, and would run for ever.

That happens where a policy takes turns that are shorter than the time between two checkpoints (`Costs.checkpoint_every_s`).
"""

from __future__ import annotations

from ..protocol.errors import UserError
from ..scheduler.view import Floats, Ints

VAIN_STOPS = 1000  # of each job that is there; policies whose turns grow have come further by then
ROUNDING_S = 1e-3  # who has come no further than this has come back to where it was


class Standstill:
    """How often jobs have been interrupted since one of them came further than ever before."""

    def __init__(self, work_s: Floats) -> None:
        self._least_left_s = work_s.copy()  # after an interruption, by number
        self._vain = 0

    def ended(self) -> None:
        """A job is over."""
        self._vain = 0

    def interrupted(self, numbers: Ints, left_s: Floats, jobs: int) -> None:
        """These have gone back to their last checkpoints, and so much is left; `jobs` are there. Raises UserError."""
        further = left_s < self._least_left_s[numbers] - ROUNDING_S
        self._least_left_s[numbers[further]] = left_s[further]
        self._vain = 0 if further.any() else self._vain + len(numbers)
        if self._vain > VAIN_STOPS * jobs:
            raise UserError(
                f"no job comes any further: each of {jobs} has been interrupted some {VAIN_STOPS:,} times before its next "
                "checkpoint; checkpoint_every_s has to be less than the policy's turns"
            )
