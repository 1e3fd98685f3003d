"""False alarms of cross-checks: correct scripts train with two workers, and both compute each step's checked micro-batch.

A worker with a different result ends its job, and with it the measurement.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

import elasticd as elastic
from elasticd.worker.comparison import crosscheck

from .measurement import Goal, Measurement
from .processes import Family
from .ranks import place_in, run_ranks

GROUP = "alarms"
GOAL = Goal(0)
WORKERS = 2
VIRTUAL_WORKERS = 4
KINDS = {
    "one thread": 40_000,
    "two threads": 20_000,
    "bf16 autocast": 20_000,
    "torch.compile": 20_000,
}  # steps
QUICK_STEPS = 200
JOB = "bench-alarms"
NOTES = (
    "A network with batch normalization and dropout, AdamW, a shuffled data set, and a moving average in `run.state`.",
)


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Run all kinds with two workers. Raises MeasurementFailed for an alarm."""
    found = []
    for kind, steps in KINDS.items():
        jobs = [{"name": JOB, "virtual_workers": VIRTUAL_WORKERS, "determinism": "elastic"}]
        settings = {"kind": kind, "steps": QUICK_STEPS if quick else steps}
        checks = run_ranks(family, "alarms:rank", WORKERS, 3000.0, jobs=jobs, **settings)
        found.append(
            Measurement(
                group=GROUP,
                what=f"{kind}, W = {WORKERS}, N = {VIRTUAL_WORKERS}",
                against=f"a micro-batch was compared in {checks} steps",
                value=0,
                unit="alarms",
                goal=GOAL,
                count=checks,
            ).show()
        )
    return found


def rank(rank: int, size: int, kind: str, steps: int, variables: dict[str, dict[str, str]], **_: Any) -> int:
    """Run one rank. Returns the number of micro-batches compared."""
    crosscheck.EVERY = 1
    torch.set_num_threads(2 if kind == "two threads" else 1)
    with place_in(variables[JOB]):
        run = elastic.join(seed=1)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 8))
    x = torch.randn(4096, 16)
    data = torch.utils.data.TensorDataset(x, x[:, :8].argmax(1))
    average = run.state(loss=0.0)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=32)
    forward = torch.compile(model) if kind == "torch.compile" else model
    checked: set[int] = set()  # steps
    for _ in run.epochs(steps):
        for inputs, labels in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bf16 autocast"):
                loss = functional.cross_entropy(forward(inputs), labels)
            (loss * (1 + 0.01 * average.loss)).backward()
            average.loss = 0.99 * average.loss + 0.01 * loss.item()
            if run._trainer is not None and run._trainer._cross_check.probes:
                checked.add(run.steps_done)
            optimizer.step()
            optimizer.zero_grad()
        if run.steps_done >= steps:
            break
    return len(checked)
