"""Detection of jobs that would run for ever, because they always fall back to a checkpoint before the next one.

That happens where a policy takes turns that are shorter than the time between two checkpoints
(`Costs.checkpoint_every_s`).
"""

from __future__ import annotations

from ..protocol.errors import UserError
from ..scheduler.arrays import Floats, Ints

VAIN_STOPS = 1000  # per present job; policies with growing turns have made progress by then
ROUNDING_S = 1e-3  # a job with no more progress than this has made none


class Standstill:
    """Number of interruptions since the last one at which a job was further than ever before."""

    def __init__(self, work_s: Floats) -> None:
        self._least_left_s = work_s.copy()  # after an interruption, by number
        self._vain = 0

    def ended(self) -> None:
        """Note that a job has ended, which is progress."""
        self._vain = 0

    def interrupted(self, numbers: Ints, left_s: Floats, jobs: int) -> None:
        """Note that these jobs have fallen back to their last checkpoints with `left_s` of work; `jobs`: number of
        present jobs.

        Raises UserError if no job makes any progress.
        """
        further = left_s < self._least_left_s[numbers] - ROUNDING_S
        self._least_left_s[numbers[further]] = left_s[further]
        self._vain = 0 if further.any() else self._vain + len(numbers)
        if self._vain > VAIN_STOPS * jobs:
            raise UserError(
                f"no job comes any further: each of {jobs} has been interrupted some {VAIN_STOPS:,} times before its next "
                "checkpoint; checkpoint_every_s has to be less than the policy's turns"
            )
