"""What the runtime itself takes of a step, in processor time: the same short loop with it and without it (W = N = 1).

Steps of less than a millisecond, in which each call of Python's shows. The two loops are processes of their own and take turns,
each with one thread. Processor time, since other processes on the machine make each step longer by more than the difference.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch

from .measurement import Goal, Measurement, number
from .processes import Family, MeasurementFailed, module

GROUP = "overhead"
GOAL = Goal(0.15)
LOOPS = ("plain", "elastic")
WARM_UP, STEPS = 500, 2000
BATCH_SIZE = 8
TIMEOUT_S = 300.0


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Pairs of the two loops, in turn."""
    pairs = [tuple(_run(family, loop) for loop in LOOPS) for _ in range(3 if quick else 9)]
    plain_ms = median(plain for plain, _ in pairs)
    return [
        Measurement(
            group=GROUP,
            what="four layers of 64 units, AdamW, batches of 8",
            against=f"a plain loop over a `DataLoader`: {number(plain_ms)} ms of processor time a step",
            value=median(elastic - plain for plain, elastic in pairs),
            unit="ms more processor time",
            goal=GOAL,
            count=len(pairs),
            detail={"pairs_ms": pairs},
        ).show()
    ]


def _run(family: Family, loop: str) -> float:
    """Run a loop in a new process. Returns its processor time of one step (ms). Raises MeasurementFailed."""
    process = family.start(module(GROUP, loop), stdout=subprocess.PIPE)
    said, _ = process.communicate(timeout=TIMEOUT_S)
    if process.returncode != 0:
        raise MeasurementFailed(f"the {loop} loop ended with exit code {process.returncode}")
    return float(said.split()[-1])


def _timed(batches: Iterable[Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Train some steps; processor time of one of them (ms)."""
    begun = 0.0
    for number_of_step, (x, y) in enumerate(batches):
        if number_of_step == WARM_UP:
            begun = time.process_time()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number_of_step == WARM_UP + STEPS:
            break
    return (time.process_time() - begun) / STEPS * 1e3


def main(loop: str) -> float:
    """Run one of the two loops. Returns its processor time of one step (ms)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = BATCH_SIZE * 2 * (WARM_UP + STEPS)
    data = torch.randn(rows, 64), torch.randn(rows, 1)
    hidden = [part for _ in range(4) for part in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if loop == "plain":
        dataset = torch.utils.data.TensorDataset(*data)
        return _timed(torch.utils.data.DataLoader(dataset, BATCH_SIZE, shuffle=True), model, optimizer)
    import elasticd as elastic

    run = elastic.join(seed=1)
    model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=BATCH_SIZE)
    for _ in run.epochs(1):
        return _timed(batches, model, optimizer)
    raise AssertionError("there is one epoch")


if __name__ == "__main__":
    print(main(sys.argv[1]))
