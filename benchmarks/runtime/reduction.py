"""The canonical reduction alone, against a plain all-reduce of the same size (worker-runtime 3)."""

from __future__ import annotations

import os
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from elasticd.worker.control import ClusterControl
from elasticd.worker.environment import read_cluster
from elasticd.worker.events import Arrived, EnterGeneration
from elasticd.worker.gradients.layout import Layout
from elasticd.worker.gradients.reduction import CanonicalReducer, Node, TreeAccumulator
from elasticd.worker.virtual import assign

from .measurement import Goal, Measurement
from .processes import Family
from .ranks import run_ranks

GROUP = "reduction"
ELEMENTS = 25_000_000
BUCKET_ELEMENTS = (25 << 20) // 4  # DistributedDataParallel's
GOAL = Goal(1.3)


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Measure 2 and 4 workers, with one and several virtual workers each."""
    found = []
    for workers, virtual_workers in ((2, 2), (4, 4), (2, 8)):
        job = {"name": "bench", "virtual_workers": virtual_workers, "determinism": "elastic"}
        repetitions = 3 if quick else 21
        times = run_ranks(family, "reduction:rank", workers, 600.0, jobs=[job], repetitions=repetitions)
        plain = min(("all-reduce", "all-reduce in buckets"), key=lambda name: median(times[name]))
        found.append(
            Measurement(
                group=GROUP,
                what=f"25 M parameters, W = {workers}, N = {virtual_workers}",
                against=f"{plain}: {median(times[plain]) * 1e3:.0f} ms",
                value=median(ours / its for ours, its in zip(times["canonical"], times[plain], strict=True)),
                unit="of its time",
                goal=GOAL if workers <= (os.cpu_count() or 1) else None,  # otherwise the processors' time dominates
                count=repetitions,
                detail={"times_s": times},
            ).show()
        )
    return found


def rank(
    rank: int, size: int, repetitions: int, variables: dict[str, dict[str, str]], jobs: list[dict[str, Any]], **_: Any
) -> dict[str, list[float]]:
    """Run one rank: the three reductions in turn."""
    environment = read_cluster(variables["bench"])
    assert environment is not None
    control = ClusterControl(environment)
    control.start()
    control.tell(Arrived(total_steps=1, steps_per_epoch=1))
    assert isinstance(control.next(), EnterGeneration)
    communicator = control.communicator
    n = environment.virtual_workers
    ranges = assign(n, [True] * size)
    layout = Layout([torch.nn.Parameter(torch.zeros(ELEMENTS // 25)) for _ in range(25)], padding=n)
    reducer = CanonicalReducer(communicator, ranges, n, layout)
    flat = torch.ones(ELEMENTS)
    tree: TreeAccumulator[Any] = TreeAccumulator(n)
    for virtual_worker in ranges[rank]:
        tree.push(virtual_worker, layout.allocate())
    nodes: list[Node[Any]] = tree.nodes()

    def canonical() -> None:
        reducer.start(nodes, nodes[0].buffer)
        reducer.finish(lambda: None)

    def plain() -> None:
        dist.all_reduce(flat)

    def in_buckets() -> None:
        for work in [dist.all_reduce(part, async_op=True) for part in flat.split(BUCKET_ELEMENTS)]:
            work.wait()

    rivals = {"all-reduce": plain, "all-reduce in buckets": in_buckets, "canonical": canonical}
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(repetitions + 1):
        flat.fill_(1.0)
        for name, run in rivals.items():
            dist.barrier()
            began = perf_counter()
            run()
            if turn:
                times[name].append(perf_counter() - began)
    return times
