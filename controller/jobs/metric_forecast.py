"""Prediction of the steps that a job takes until a reported metric reaches the user's bound. Pure.

Accuracies rise, and losses fall, ever more slowly. Optimus (3.1) fits a loss by 1 / (a k + b) + c after k steps. An
accuracy is fitted here by c - 1 / (a k + b) likewise. For each of many limits c, the parameters a and b follow from a
line through 1 / (c - value). Each value is weighted so that its own error is minimised. The limit with the least error
is taken. The result is unknown if the curve never reaches the bound, or only after many more steps than were reported.
"""

from __future__ import annotations

import math

import numpy as np

from ...protocol.model import Until

FEW = 5  # fewest reports to which a curve is fitted
KEPT = 64  # reports kept per job; when there are more, every second one is dropped
FAR = 20.0  # longest prediction, as a multiple of the reported steps
LIMITS = np.geomspace(0.01, 30.0, 160)  # candidate limits beyond the best value, in units of the values' spread


class Reports:
    """Reports of one metric by a job's script: the number of steps, and the value."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []

    def add(self, steps: int, value: float) -> bool:
        """Add a finite value reported after `steps` steps; return False if it repeats the last report, as statuses do.

        Reports of later steps are dropped, because the job has restarted from a checkpoint.
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
        """Whether there are too few reports for a prediction."""
        return len(self._points) < FEW

    def steps_until(self, until: Until) -> int | None:
        """Return the number of steps of the whole job at which the metric reaches the bound; None if unknown."""
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
    """Return slope and intercept of the line through each row of `y` (rows x points), by weighted least squares."""
    whole = weight.sum(axis=1)
    mean_x, mean_y = (weight * x).sum(axis=1) / whole, (weight * y).sum(axis=1) / whole
    apart = x - mean_x[:, None]
    slope = (weight * apart * (y - mean_y[:, None])).sum(axis=1) / (weight * apart**2).sum(axis=1)
    return slope, mean_y - slope * mean_x
