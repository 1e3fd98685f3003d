"""`optimus`: every GPU where it shortens the remaining times most (Optimus, EuroSys'18, as AFS 5.1 and Elan VI-C use
it).

The marginal gain of a job's next GPU is by how much its remaining time shrinks,  left / T(n) - left / T(n + 1).
Optimus divides that by what a worker takes of the scarcest resource; here that is one GPU for everybody. How long a job
still takes Optimus predicts from its loss; like AFS we take the prediction as correct, so the policy needs lengths. It
is asked at every arrival and every end of a job rather than once in an interval.
"""

from __future__ import annotations

import random

import msgspec

from ..view import JobTable, Reason
from .base import Gain, Shares, grow, waits_for
from .max_min import minimums


class OptimusParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class Optimus:
    """Every job its minimum (one GPU, mostly), in the order of submission, while that fits; then one GPU at a time to
    the job whose remaining time it shortens most, until that helps nobody.

    Where throughput is concave the sum of the remaining times cannot be made smaller than so. Lengths decide who grows,
    not who waits: long jobs hold short ones back (AFS 5.2, 6).
    """

    name = "optimus"
    needs_lengths = True
    Parameters = OptimusParameters

    def __init__(self, parameters: OptimusParameters) -> None:
        self.parameters = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given, left = minimums(jobs, gpus)
        if left:
            grow(jobs, given, gpus, saved_s(jobs))

        def why(row: int) -> Reason | None:
            if given[row]:
                return None
            return waits_for(int(jobs.min_gpus[row]), left, gpus, "left by the minimums of earlier jobs")

        return Shares(given, why)


def saved_s(jobs: JobTable) -> Gain:
    """By how much one GPU more shortens a job's remaining time."""
    left_s = jobs.left_s

    def gain(row: int, now: float, then: float) -> float:
        left = float(left_s.item(row))
        return left / now - left / then

    return gain
