"""Curves of goodput: the training progress of a job with a batch size chosen for each share (Pollux, OSDI'21, 3).

Goodput is throughput times statistical efficiency. With the gradient noise scale phi, each sample of a batch M advances
training by the part ``(phi + M0) / (phi + M)`` of its effect with the initial batch M0. So

    goodput(n) = max over M of  rate(n, M) * M * (phi + M0) / (phi + M)

with M from M0 to the largest batch that was tried in training.

Where many batches were timed (Sia's and Pollux' tables) and phi is known (`lengths`), this gives a curve over shares
that replaces that of a fixed batch, for policies that choose batches. A job is as long as with its own batch: its work
there, over the progress that it makes in the same time.

Pollux fits a model of throughput to a job's measurements so far (``T_grad = a + b m``, ``T_sync`` by the number of
GPUs, and the gamma-norm of both). Here measured times replace the model (`profiles.placements`), for the truth and for
the policies' view. As in Pollux' simulator, the largest batch on a GPU is the largest measured, and gradients of more
are accumulated. The total batch is one of 50 between the bounds, in geometric steps. phi is constant here, though it
grows during training.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..scheduler.profiles.curves import Curve, Profiles, curve_of
from ..scheduler.profiles.placements import BATCHES, Times
from .lengths import POLLUX, Convergence

TRIED = 50  # number of batches


def chosen_batches(
    by_share: Mapping[int, Times], converges: Convergence, largest: float
) -> dict[int, tuple[float, float]]:
    """Return by share the batch of the greatest goodput, and that goodput, in iterations with the initial batch per
    second.

    Shares without measurements of such a batch are left out.
    """
    found = {}
    for share, times in by_share.items():
        least = max(converges.batch, share * float(times.local[0]))
        if least <= largest:
            batches = np.unique([*np.geomspace(least, largest, TRIED), *_powers(converges.batch, least, largest)])
            goodput = times.rates(batches / share) * converges.gain(batches)
            best = int(np.argmax(goodput))
            if goodput[best] > 0:
                found[share] = float(batches[best]), float(goodput[best])
    return found


def _powers(batch: float, least: float, largest: float) -> list[float]:
    """Return the batches of Pollux' workloads: none of these may be better than the chosen one."""
    found = []
    while batch <= largest:
        if batch >= least:
            found.append(batch)
        batch *= 2
    return found


class Goodput:
    """The goodput curves of a table, computed on demand."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles
        self._known: dict[tuple[str, str], Curve | None] = {}

    def of(self, curve: Curve) -> tuple[Curve, float] | None:
        """Return the curve with batches that are chosen for each share, and the factor for the job's work on one GPU.

        None if too little is known of other batches, or of their progress.
        """
        if curve.batch is None or curve.model not in POLLUX:
            return None
        key = curve.model, curve.gpu_type
        if key not in self._known:
            self._known[key] = self._made(*key)
        chosen = self._known[key]
        if chosen is None:
            return None
        progress = curve.iterations_per_s * float(POLLUX[curve.model].gain(np.array(curve.batch)))
        return chosen, progress / chosen.iterations_per_s

    def _made(self, model: str, gpu_type: str) -> Curve | None:
        by_share = self._profiles.placed.get((model, gpu_type), {})
        chosen = chosen_batches(by_share, POLLUX[model], float(BATCHES[model][-1]))
        if not chosen:
            return None
        return curve_of(model, None, gpu_type, {share: [goodput] for share, (_, goodput) in chosen.items()})
