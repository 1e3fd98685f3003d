"""Throughput of jobs by their number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .arrays import Floats, Ints
from .hull import concave


@dataclass(frozen=True)
class Curves:
    """Growth of throughput with GPUs: `speedup[c, n]` is T(n) / T(1) of curve c; `speedup[c, 0]` is 0.

    The curves hold real throughput as far as it is known and need not be concave. Rules that assume concavity use the
    hull.
    """

    speedup: Floats
    hull: Floats | None = None  # the concave hulls in the same form, if they were computed already
    # By GPU type, for each curve the row of the same jobs' curve on that type, relative to one GPU of the first curve.
    # On types that are left out, jobs scale and run as by their own curve.
    on: Mapping[str, Ints] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """The largest share that the curves cover."""
        return int(self.speedup.shape[1]) - 1

    @cached_property
    def _rows(self) -> dict[int, list[float]]:
        return {}

    def row(self, curve: int) -> list[float]:
        """Return T(n) / T(1) for n = 0, 1, ... as a list, for loops over single shares, where arrays are slow."""
        found = self._rows.get(curve)
        if found is None:
            found = self._rows[curve] = self.speedup[curve].tolist()
        return found

    @cached_property
    def _hulls(self) -> Floats:
        return np.full(self.speedup.shape, np.nan) if self.hull is None else self.hull

    @cached_property
    def _hull_rows(self) -> dict[tuple[int, int], list[float]]:
        return {}

    def hulls(self, curves: Ints) -> Floats:
        """Return an array in which the rows of these curves hold their hulls (`hull.concave`).

        Other rows are undefined.
        """
        found = self._hulls
        unknown = curves[np.isnan(found[curves, 0])]
        for curve in np.unique(unknown).tolist() if len(unknown) else ():
            found[curve] = concave(self.speedup[curve : curve + 1])[0]
        return found

    def hull_row(self, curve: int, most: int) -> list[float]:
        """Return the hull of a curve's first `most` GPUs, from 0 on."""
        found = self._hull_rows.get((curve, most))
        if found is None:
            hull = self.hulls(np.array([curve]))[curve, : most + 1]
            if hull[most] != self.speedup[curve, most]:  # a larger share behind `most` raises the full hull
                hull = concave(self.speedup[curve : curve + 1, : most + 1])[0]
            found = self._hull_rows[curve, most] = hull.tolist()
        return found

    @cached_property
    def derived(self) -> dict[Any, dict[Any, Any]]:
        """Values that policies have computed from these curves alone, each under its own key.

        Cleared when a curve is corrected.
        """
        return {}

    def correct(self, curve: int, speedup: Floats) -> None:
        """Replace a curve after a new measurement."""
        self.speedup[curve] = speedup
        self.derived.clear()
        self._rows.pop(curve, None)
        self._hulls[curve] = np.nan
        self._hull_rows.clear()
