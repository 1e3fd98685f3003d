"""Training loops compared within one process: stock DistributedDataParallel, plain accumulation, and this runtime.

Each is an endless iterator that yields after every applied step, so that blocks of steps of the loops can alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter, process_time
from typing import Protocol

import torch
import torch.distributed as dist

import elasticd as elastic

from .ranks import place_in
from .workloads import Workload, build, sgd

ENDLESS = 1_000_000
Loop = Iterator[None]


class InTurn(Protocol):
    """A loop that runs blocks of steps in alternation with others."""

    name: str

    def steps(self, count: int) -> float:
        """Run `count` steps. Returns the seconds per step."""


class Rival:
    """A loop, with torch's global settings under which it runs."""

    def __init__(self, name: str, loop: Loop) -> None:
        """loop: started already, up to its first step, so that the present settings are those that it has made."""
        self.name = name
        self._loop = loop
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        self._warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(False)

    def steps(self, count: int) -> float:
        """Run `count` steps. Returns the seconds per step."""
        torch.use_deterministic_algorithms(self._deterministic, warn_only=self._warn_only)
        try:
            began = perf_counter()
            for _ in range(count):
                next(self._loop)
            return (perf_counter() - began) / count
        finally:
            torch.use_deterministic_algorithms(False)


def _rows(workload: Workload, rank: int, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield micro-batches of this rank: shuffled rows of the data, as in this runtime."""
    x, y = workload.data
    generator = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(x), generator=generator)
        for rows in order.split(workload.batch_size * size):
            mine = rows[rank * workload.batch_size : (rank + 1) * workload.batch_size]
            yield x[mine], y[mine]


def stock(name: str, rank: int, size: int) -> Rival:
    """Return stock DistributedDataParallel."""
    workload = build(name)
    model = torch.nn.parallel.DistributedDataParallel(workload.model)
    optimizer = sgd(model)

    def loop() -> Loop:
        for x, y in _rows(workload, rank, size):
            workload.loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield

    return Rival("ddp", loop())


def accumulation(name: str, count: int) -> Rival:
    """Return one process that accumulates the gradients of `count` micro-batches."""
    workload = build(name)
    model, optimizer = workload.model, sgd(workload.model)

    def loop() -> Loop:
        batches = _rows(workload, 0, 1)
        while True:
            for _ in range(count):
                x, y = next(batches)
                (workload.loss(model(x), y) / count).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield

    return Rival("accumulation", loop())


def ours(label: str, name: str, variables: dict[str, str]) -> Rival:
    """Return this runtime's loop, as a worker of the job described by `variables`, after its second step."""
    with place_in(variables):
        run = elastic.join()
    workload = build(name)
    model, optimizer, batches = run.prepare(workload.model, sgd(workload.model), workload.data, workload.batch_size)

    def loop() -> Iterator[None]:
        applied = 1  # in the first step the others receive the state of rank 0
        for _ in run.epochs(ENDLESS):
            for x, y in batches:
                if (
                    run.steps_done > applied
                ):  # in the first loop body of a step; code behind `optimizer.step()` then counts, too
                    applied = run.steps_done
                    yield
                workload.loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()

    begun = loop()
    next(begun)
    return Rival(label, begun)


Times = dict[str, list[float]]  # seconds per step, by loop and block


def in_turn(rivals: Sequence[InTurn], warm_up: int, blocks: int, steps: int) -> dict[str, Times]:
    """Return the times of each loop's steps, by block: elapsed ("wall"), and processor time of this process ("cpu").

    The loop that begins changes with every block.
    """
    wall: Times = {rival.name: [] for rival in rivals}
    cpu: Times = {rival.name: [] for rival in rivals}
    for rival in rivals:
        rival.steps(warm_up)
    for block in range(blocks):
        first = block % len(rivals)
        for rival in [*rivals[first:], *rivals[:first]]:
            dist.barrier()
            began_s = process_time()
            wall[rival.name].append(rival.steps(steps))
            cpu[rival.name].append((process_time() - began_s) / steps)
    return {"wall": wall, "cpu": cpu}


def ratio(times: Times, numerator: str, denominator: str) -> float:
    """Return the median over the blocks of one loop's time over the other's."""
    return median(a / b for a, b in zip(times[numerator], times[denominator], strict=True))
