"""GPU time that promised deadlines hold, by user and group, and its limits (`promised_gpu_hours`). Pure.

A hard deadline holds the GPU time of its plan (`deadlines.timeline.Filled.gpu_s`): the least with which the job ends in
time. It shrinks as the job makes progress. Soft deadlines hold none, as they are never promised at others' expense.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from .terms import Quotas

HOUR_S = 3600.0
ROUNDING_GPU_S = 1e-3


class Hours:
    """Promised GPU time, in GPU-seconds by user."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._held: dict[str, float] = {}

    def add(self, user: str, gpu_s: float) -> None:
        """Count promised GPU time for a user."""
        self._held[user] = self._held.get(user, 0.0) + gpu_s

    def left_gpu_s(self, user: str) -> float:
        """Return how many GPU-seconds may still be promised to a user; inf: there is no limit."""
        return max(0.0, min((most - has for _, has, most in self._bounds(user)), default=math.inf))

    def beyond(self, user: str, gpu_s: float) -> str:
        """Return why so much more GPU time may not be promised to a user, as a sentence; "" if it may."""
        for whose, has, most in self._bounds(user):
            if has + gpu_s > most + ROUNDING_GPU_S:
                need, has_h = _hours(gpu_s), _hours(has)
                return (
                    f"its deadline takes {need} GPU-hours, and {whose} is promised {has_h} of {most / HOUR_S:g} already "
                    "(promised_gpu_hours)"
                )
        return ""

    def _bounds(self, user: str) -> Iterator[tuple[str, float, float]]:
        """Yield the limits that apply to a user: owner, promised and allowed GPU-seconds."""
        own, group = self._quotas.own(user), self._quotas.group_of(user)
        if own.promised_gpu_hours is not None:
            yield user, self._held.get(user, 0.0), own.promised_gpu_hours * HOUR_S
        if group is not None and (most := self._quotas.groups[group].promised_gpu_hours) is not None:
            members = self._quotas.groups[group].members
            yield f"group {group}", sum(self._held.get(name, 0.0) for name in members), most * HOUR_S


def _hours(gpu_s: float) -> str:
    """Format GPU-seconds as hours with three digits: "0.0278", "12.5"."""
    return f"{gpu_s / HOUR_S:.3g}"
