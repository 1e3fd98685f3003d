"""EasyScale's GPUs of three types (5.2), and which of them the jobs of its trace may use."""

from __future__ import annotations

from dataclasses import replace

from elasticd.scheduler.kinds import Demand
from elasticd.scheduler.view import ServerInView
from elasticd.simulator import clusters
from elasticd.simulator.traces import Trace

GPUS = [
    clusters.Servers(gpus=8, count=4, name="v", gpu_type="v100"),
    clusters.Servers(gpus=2, count=8, name="p", gpu_type="p100"),
    clusters.Servers(gpus=4, count=4, name="t", gpu_type="t4"),
]


def cluster() -> tuple[ServerInView, ...]:
    return clusters.build(clusters.ClusterFile(servers=GPUS), "EasyScale 5.2")


def with_demands(trace: Trace, uses: str) -> Trace:
    """Return the trace with the GPUs that its jobs may use. uses: "asked", "homo" or "heter".

    Under "asked" a job that has more virtual workers than there are GPUs of its type may use any one type.
    """
    preferred, mixes = trace.table.columns["preferred_gpu"], trace.table.columns["enable_heterogeneous_deterministic"]
    there = {entry.gpu_type: entry.count * entry.gpus for entry in GPUS}
    asked = [
        Demand(types=(name,) if uses == "asked" and gpus <= there[name] else (), mixes=uses == "heter" and flag != "0")
        for name, flag, gpus in zip(preferred, mixes, trace.gpus.tolist(), strict=True)
    ]
    return replace(trace, demands=asked)


def types() -> list[str]:
    """Return the GPUs' names, the first those on which times are counted."""
    return [entry.gpu_type for entry in GPUS]
