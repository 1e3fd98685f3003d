"""Elan's hybrid scaling: the least batch with which a job can use its GPUs (Elan III, Algorithm 1). Pure.

With a fixed batch, throughput first grows with the number of workers, and then falls: each worker computes less, but
exchanges as much (Elan III, Fig. 3). A larger batch moves the greatest throughput to more workers. Algorithm 1 doubles
the batch until that number is at least the number of workers that the job has; the least such batch changes the
training least.

The curves for larger batches follow from the measured one. A step with factor k and W workers takes

    t(k, W) = k * c * ceil(N / W) + r(W)

where c is the time of one micro-batch, ceil(N / W) the most virtual workers that any worker hosts, and r(W) the time of
the exchange and the update, which does not depend on the batch. Both are found from the measured t(k0, W): one worker
exchanges nothing, so c = t(k0, 1) / (k0 * N).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from .speedup_curve import NOISE, Measured


class Curves:
    """Times of a job's steps, by factor of its batch and number of workers."""

    def __init__(self, steps_per_s: Sequence[float], virtual_workers: int, factor: int) -> None:
        """steps_per_s: by number of workers from 0 on, measured with this factor; 0: unknown."""
        self._n = virtual_workers
        self.most = min(len(steps_per_s) - 1, virtual_workers)
        self._computing_s = 1.0 / (float(steps_per_s[1]) * factor * virtual_workers)
        times = [1.0 / float(steps_per_s[workers]) for workers in range(1, self.most + 1)]
        own = [factor * self._computing_s * self._hosted(workers) for workers in range(1, self.most + 1)]
        self._exchange_s = [0.0, *(max(0.0, whole - part) for whole, part in zip(times, own, strict=True))]

    def _hosted(self, workers: int) -> int:
        return -(-self._n // workers)

    def step_s(self, factor: int, workers: int) -> float:
        """Return the time of a step."""
        return factor * self._computing_s * self._hosted(workers) + self._exchange_s[workers]

    def optimum(self, factor: int) -> int:
        """Return the number of workers with the greatest throughput under strong scaling: of those within the noise of
        measurements the least.
        """
        times = [self.step_s(factor, workers) for workers in range(1, self.most + 1)]
        return next(workers for workers, time in enumerate(times, 1) if time <= (1 + NOISE) * min(times))


def at_factor(measured: tuple[Measured, ...], virtual_workers: int, before: int, after: int) -> tuple[Measured, ...]:
    """Convert measurements of a job whose batch had the factor `before` to the factor `after`, by the same model.

    c follows from the smallest measured share, where the exchange is neglected.
    """
    if not measured:
        return ()
    smallest = min(measured, key=lambda entry: entry.share)
    computing_s = 1.0 / (smallest.steps_per_s * before * -(-virtual_workers // smallest.share))

    def scaled(entry: Measured, rate: float) -> float:
        more_s = (after - before) * computing_s * -(-virtual_workers // entry.share)
        least_s = min(1.0, after / before) / rate  # noise must not make a time negative
        return 1.0 / max(least_s, 1.0 / rate + more_s)

    return tuple(replace(entry, recent=tuple(scaled(entry, rate) for rate in entry.recent)) for entry in measured)


def grown_factor(curves: Curves, factor: int, before: int, after: int, ceiling: int) -> int:
    """Return the factor of a job's batch (Algorithm 1) after its workers have increased from `before` to `after`.

    `factor`: the factor until now. `ceiling`: the author's limit. Factors are whole numbers, so the last line of the
    algorithm, weak scaling, rounds down.
    """
    growth = 1
    while growth * before <= after:
        if curves.optimum(factor * growth) >= min(after, curves.most):
            return min(factor * growth, max(factor, ceiling))
        growth *= 2
    return min(factor * max(1, after // before), max(factor, ceiling))
