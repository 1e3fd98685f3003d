"""How many steps a job takes until a figure that its script reports has come as far as its user wants. Pure.

Accuracies rise, and losses fall, ever more slowly. Optimus (3.1) fits a loss by 1 / (a k + b) + c after k steps; an accuracy is
fitted here by c - 1 / (a k + b) likewise. For each of many limits c the other two follow from a line through 1 / (c - value), in
which each value counts so that its own error is minimised; the limit with the least error is taken. What the curve never comes
to, or only after very many more steps than were seen, is not known.
"""

from __future__ import annotations

import math

import numpy as np

from ...protocol.model import Until

FEW = 5  # reports, from which on a curve is fitted
KEPT = 64  # of a job; of more, every second one is forgotten
FAR = 20.0  # times the steps that were seen: beyond them the curve says nothing
LIMITS = np.geomspace(0.01, 30.0, 160)  # of the curve, beyond the best value; 1: as far again as the values have come


class Reports:
    """What a job's script has reported of one figure: after which step, and what."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []

    def add(self, steps: int, value: float) -> bool:
        """After so many steps it was `value` (finite). False: that is no news; a status repeats what was reported before.

        What was reported of later steps does not count any more: the job has begun again from a checkpoint.
        """
        while self._points and self._points[-1][0] >= steps:
            self._points.pop()
        if self._points and self._points[-1][1] == value:
            return False
        self._points.append((steps, value))
        if len(self._points) > KEPT:
            del self._points[1:-1:2]
        return True

    @property
    def few(self) -> bool:
        """Too few to say anything."""
        return len(self._points) < FEW

    def steps_until(self, until: Until) -> int | None:
        """Of the whole job: after so many steps the figure is there. None: not known."""
        if self.few:
            return None
        steps, values = (np.array(each, dtype=float) for each in zip(*self._points, strict=True))
        sign = 1.0 if until.at_least else -1.0
        values, bound = sign * values, sign * until.bound
        if (values >= bound).any():
            return int(steps[(values >= bound).argmax()])
        best, spread = float(values.max()), float(values.max() - values.min())
        limits = best + spread * LIMITS
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            gaps = limits[:, None] - values
            slope, start = _lines(steps, 1.0 / gaps, gaps**4)
            line = slope[:, None] * steps + start[:, None]
            error = ((limits[:, None] - 1.0 / line - values) ** 2).sum(axis=1)
            error[~((slope > 0) & (line > 0).all(axis=1) & np.isfinite(error))] = math.inf
            row = int(error.argmin())
            if math.isinf(error[row]) or limits[row] <= bound:
                return None
            found = float((1.0 / (limits[row] - bound) - start[row]) / slope[row])
        if not found <= FAR * steps[-1]:
            return None
        return max(int(steps[-1]) + 1, math.ceil(found))


def _lines(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope and start of the line through each row of y (rows x points), by least weighted squares."""
    whole = weight.sum(axis=1)
    mean_x, mean_y = (weight * x).sum(axis=1) / whole, (weight * y).sum(axis=1) / whole
    apart = x - mean_x[:, None]
    slope = (weight * apart * (y - mean_y[:, None])).sum(axis=1) / (weight * apart**2).sum(axis=1)
    return slope, mean_y - slope * mean_x
