"""What jobs that are over tell of how long jobs are: numbers of jobs, by what they had done when they ended.

A policy that has not been told how long a job is may expect what has been seen of others; what users tell can be held against
what came of it. Only ends are counted, so nothing is learned from a job before it is over. Bins are wide, as lengths spread over
six orders of magnitude; the whole is a few kilobytes, however many jobs there have been.

* `lengths`, by kind and bin: how much work they have done, in seconds on one GPU. A *kind* requests about as many GPUs.
* `errors`, by bin: that work over the work that had been told, of those jobs that had told any.
"""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KINDS = 12  # 1, 2 to 3, 4 to 7, … GPUs; the last one has all larger requests
# Where bins begin, and how much longer each is than the one before. They end where the next one begins, the last one nowhere.
LENGTHS_S: Floats = np.concatenate([[0.0], 30.0 * 1.35 ** np.arange(45)])  # up to half a year
RIGHT = 0.03  # what has been told within this part of the truth counts as right
# Parts of what has been told: one bin holds all that were right.
PARTS: Floats = np.concatenate(
    [[0.0], (1 - RIGHT) * 1.3 ** np.arange(-18.0, 1.0), (1 + RIGHT) * 1.3 ** np.arange(0.0, 18.0)]
)
AS_TOLD = 19  # the number of that bin
_LENGTHS_S, _PARTS = tuple(LENGTHS_S.tolist()), tuple(PARTS.tolist())


@dataclass(frozen=True)
class Ended:
    """How many jobs have ended. Arrays are never changed: `and_one` makes new ones."""

    lengths: Ints
    errors: Ints

    @classmethod
    def nothing(cls) -> Ended:
        return cls(np.zeros((KINDS, len(LENGTHS_S)), dtype=np.int64), np.zeros(len(PARTS), dtype=np.int64))

    def and_one(self, requested_gpus: int, work_s: float, told_s: float) -> Ended:
        """A job has ended that has done so much work. `told_s`: what had been told of it; nan: nothing."""
        lengths = self.lengths.copy()
        lengths[min(requested_gpus.bit_length(), KINDS) - 1, bisect(_LENGTHS_S, work_s) - 1] += 1
        if math.isnan(told_s):
            return replace(self, lengths=lengths)
        errors = self.errors.copy()
        errors[bisect(_PARTS, work_s / told_s if told_s > 0 else math.inf) - 1] += 1
        return Ended(lengths, errors)


def kinds(requested_gpus: Any) -> Any:
    """Of jobs that request so many GPUs: 0 for one."""
    return np.minimum(np.log2(requested_gpus).astype(np.int64), KINDS - 1)


def bins(edges: Floats, values: Any) -> Any:
    """In which of these bins each value is, from 0 on."""
    return np.searchsorted(edges, values, side="right") - 1


NOTHING_ENDED = Ended.nothing()
