"""What jobs tell of their lengths: the truth, nothing, or something that is wrong. Policies that look at lengths see that."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..protocol.errors import UserError
from ..scheduler.view import Floats

EARLIEST = 100.0  # who ends early has told up to so many times what he takes


@dataclass(frozen=True)
class Telling:
    """`part` of the jobs tell a length: what they take times a factor from `least` to `most`, whose logarithm is drawn
    uniformly. `early` of those who tell end early: they take 1 to 1/100 of what they have told."""

    part: float = 1.0
    least: float = 1.0
    most: float = 1.0
    early: float = 0.0

    def told_s(self, work_s: Floats, seed: int) -> Floats | None:
        """What jobs of these lengths tell; nan: nothing; None: all tell the truth. It depends on the seed alone."""
        if self == Telling():
            return None
        rng = np.random.default_rng([seed, len(work_s)])
        tells, ends_early = (rng.random(len(work_s)) < part for part in (self.part, self.early))
        wrong = np.exp(rng.uniform(math.log(self.least), math.log(self.most), len(work_s)))
        too_long = np.exp(rng.uniform(0.0, math.log(EARLIEST), len(work_s)))
        return np.where(tells, work_s * np.where(ends_early, too_long, wrong), np.nan)


def telling(told: float | None, errors: str | None, early: float | None) -> Telling | None:
    """From options; None: nothing is asked for. `errors`: "0.5,2". Raises UserError."""
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
