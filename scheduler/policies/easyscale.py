"""`easyscale`: more GPUs where they bring the greatest speedup per GPU (EasyScale 3.4, inter-job scheduler).

Every job proposes several numbers of further GPUs, with the speedup of each; the cluster accepts proposals by speedup per
GPU, and asks again until no proposal fits (`companion`). In the paper jobs begin with their minimum, which its experiments
set to 0, in the order of submission.
"""

from __future__ import annotations

import random
from typing import Annotated

import msgspec
import numpy as np

from ..companion import Proposal, accepted, proposals
from ..view import JobTable, Reason, Taken
from .base import Shares, waits_for
from .max_min import minimums


class EasyScaleParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`proposals`: how many a job makes at a time (top-K)."""

    proposals: Annotated[int, msgspec.Meta(ge=1, le=64)] = 3


class EasyScale:
    """Every job its minimum in the order of submission, while that fits; then proposals by speedup per GPU."""

    name = "easyscale"
    needs_lengths = False
    Parameters = EasyScaleParameters

    def __init__(self, parameters: EasyScaleParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given, left = minimums(jobs, gpus)
        rows = np.flatnonzero(given)
        spare = left
        limits = np.minimum(jobs.max_gpus, jobs.curves.most)
        curves = {row: jobs.curves.row(int(jobs.curve[row]))[: int(limits[row]) + 1] for row in rows.tolist()}
        wishes: dict[int, list[Proposal]] = {}
        while spare > 0:
            for row, curve in curves.items():
                if row not in wishes or any(wish.more > spare for wish in wishes[row]):
                    wishes[row] = proposals(row, curve, int(given[row]), spare, self.parameters.proposals)
            granted = accepted((wish for each in wishes.values() for wish in each), spare)
            if not granted:
                break
            for wish in granted:
                given[wish.job] += wish.more
                spare -= wish.more
                del wishes[wish.job]

        def why(row: int) -> Reason | None:
            if given[row]:
                return None
            what = "left by the minimums of earlier jobs"
            return waits_for(int(jobs.min_gpus[row]), left, gpus, what, Taken.MINIMUMS)

        return Shares(given, why, rows=rows)
