"""The throughput of a job on GPUs of several types (EasyScale 3.4, equation 1). Pure.

A job's N virtual workers (EasyScale's maxP) are hosted by whole numbers: A_i on each GPU of type i, whose capability
C_i is the number of virtual workers that it computes per second. The step waits for the GPU that is busy the longest:

    sum of N_i A_i >= N                                        (1a)
    f_overload = max A_i / C_i                                 (1b)
    waste = sum of N_i (C_i - A_i / f) + (nEST - N) / f        (1c; nEST is the sum of N_i A_i)
    throughput = sum of N_i C_i - waste                        (1d)

The paper's text omits the N_i before the brackets of (1c); then (1d) would not be a throughput. With N_i, (1d) is
N / f_overload: the virtual workers of a step over the duration of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The best hosting on some GPUs."""

    gpus: Mapping[str, int]  # N_i, by type
    hosted: Mapping[str, int]  # A_i: virtual workers on each GPU of a type, at the most
    overload_s: float  # f_overload: the duration of a step
    waste: float  # unused capability of the GPUs (virtual workers per second)
    throughput: float  # virtual workers per second


def plan(virtual_workers: int, capability: Mapping[str, float], gpus: Mapping[str, int]) -> Plan:
    """Return the plan with the greatest throughput: that of least f_overload. Raises ValueError without a GPU."""
    used = {name: count for name, count in gpus.items() if count}
    if not used:
        raise ValueError("a plan needs a GPU")
    hosted = dict.fromkeys(used, 0)
    room, overload_s = 0, 0.0
    while (
        room < virtual_workers
    ):  # the type whose next virtual worker would be done first hosts one more on each of its GPUs
        name = min(used, key=lambda each: (hosted[each] + 1) / capability[each])
        hosted[name] += 1
        room += used[name]
        overload_s = hosted[name] / capability[name]
    idle = sum(count * (capability[name] - hosted[name] / overload_s) for name, count in used.items())
    waste = idle + (room - virtual_workers) / overload_s
    whole = sum(count * capability[name] for name, count in used.items())
    return Plan(used, hosted, overload_s, waste, whole - waste)
