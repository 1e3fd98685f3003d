"""The jobs' reports of their lengths: true, missing or wrong. Policies that use lengths see the reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..protocol.errors import UserError
from ..scheduler.arrays import Floats

EARLIEST = 100.0  # largest reported length of a job that ends early, relative to its real one


@dataclass(frozen=True)
class Telling:
    """Model of reported lengths: `part` of the jobs report one, which is the real length times a factor from `least` to
    `most` with a uniformly drawn logarithm. `early` of these jobs end early: they take 1 to 1/100 of the reported
    length."""

    part: float = 1.0
    least: float = 1.0
    most: float = 1.0
    early: float = 0.0

    def told_s(self, work_s: Floats, seed: int) -> Floats | None:
        """Return the reports of jobs of these lengths; nan: no report; None: all are true.

        They depend on the seed alone.
        """
        if self == Telling():
            return None
        rng = np.random.default_rng([seed, len(work_s)])
        tells, ends_early = (rng.random(len(work_s)) < part for part in (self.part, self.early))
        wrong = np.exp(rng.uniform(math.log(self.least), math.log(self.most), len(work_s)))
        too_long = np.exp(rng.uniform(0.0, math.log(EARLIEST), len(work_s)))
        return np.where(tells, work_s * np.where(ends_early, too_long, wrong), np.nan)


def telling(told: float | None, errors: str | None, early: float | None) -> Telling | None:
    """Return the model for these options; None if no option is given.

    `errors`: "0.5,2". Raises UserError if one is invalid.
    """
    if told is None and errors is None and early is None:
        return None
    for name, part in (("told", told), ("early", early)):
        if part is not None and not 0 <= part <= 1:
            raise UserError(f"--{name}: {part:g} is not a part of the jobs, from 0 to 1")
    least, most = _factors(errors) if errors is not None else (1.0, 1.0)
    return Telling(1.0 if told is None else told, least, most, early or 0.0)


def _factors(text: str) -> tuple[float, float]:
    try:
        least, most = (float(part) for part in text.split(","))
    except ValueError:
        least, most = 0.0, 0.0
    if not 1e-6 <= least <= most <= 1e6:
        raise UserError(
            f"--errors: {text!r} is not two factors like 0.5,2, from 0.000001 to 1000000, the smaller one first"
        )
    return least, most
