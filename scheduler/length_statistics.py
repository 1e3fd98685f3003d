"""Statistics of ended jobs' lengths: numbers of jobs, by the work that they had done when they ended.

A policy may estimate an unknown length from other jobs, and compare users' reports with the real lengths. Only ends are
counted, so nothing is learned from a job before it is over. Bins are wide, as lengths spread over six orders of
magnitude; all counts take a few kilobytes, however many jobs there have been.

* `lengths`, by kind and bin: the work done, in seconds on one GPU. A *kind* requests about as many GPUs.
* `errors`, by bin: the work done divided by the reported work, for jobs with a report.
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

KINDS = 12  # 1, 2 to 3, 4 to 7, ... GPUs; the last one has all larger requests
# Starts of the bins, each 1.35 times the one before. A bin ends at the start of the next one; the last has no end.
LENGTHS_S: Floats = np.concatenate([[0.0], 30.0 * 1.35 ** np.arange(45)])  # up to half a year
RIGHT = 0.03  # a report within this fraction of the truth counts as right
# Fractions of the reported length: one bin holds all reports that were right.
PARTS: Floats = np.concatenate(
    [[0.0], (1 - RIGHT) * 1.3 ** np.arange(-18.0, 1.0), (1 + RIGHT) * 1.3 ** np.arange(0.0, 18.0)]
)
AS_TOLD = 19  # index of the bin of right reports
_LENGTHS_S, _PARTS = tuple(LENGTHS_S.tolist()), tuple(PARTS.tolist())


@dataclass(frozen=True)
class Ended:
    """Counts of ended jobs. Arrays are never changed: `and_one` makes new ones."""

    lengths: Ints
    errors: Ints

    @classmethod
    def nothing(cls) -> Ended:
        return cls(np.zeros((KINDS, len(LENGTHS_S)), dtype=np.int64), np.zeros(len(PARTS), dtype=np.int64))

    def and_one(self, requested_gpus: int, work_s: float, told_s: float) -> Ended:
        """Return the counts with one more ended job, of `work_s` seconds of work.

        `told_s`: its reported work; nan: none.
        """
        lengths = self.lengths.copy()
        lengths[min(requested_gpus.bit_length(), KINDS) - 1, bisect(_LENGTHS_S, work_s) - 1] += 1
        if math.isnan(told_s):
            return replace(self, lengths=lengths)
        errors = self.errors.copy()
        errors[bisect(_PARTS, work_s / told_s if told_s > 0 else math.inf) - 1] += 1
        return Ended(lengths, errors)


def kinds(requested_gpus: Any) -> Any:
    """Return the kinds of jobs that request so many GPUs: 0 for one."""
    return np.minimum(np.log2(requested_gpus).astype(np.int64), KINDS - 1)


def bins(edges: Floats, values: Any) -> Any:
    """Return the bin of each value, from 0 on."""
    return np.searchsorted(edges, values, side="right") - 1


NOTHING_ENDED = Ended.nothing()
