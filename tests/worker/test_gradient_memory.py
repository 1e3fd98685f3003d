"""Number of gradients that a worker keeps at once, beside the parameters' own `grad`: at most log2(N / W) + 1 (EasyScale 3.2)."""

from __future__ import annotations

import math

import pytest
import torch

from elasticd.worker.communication.communicator import Communicator
from elasticd.worker.gradients.accumulation import Accumulation
from elasticd.worker.gradients.layout import Gradient, Layout
from elasticd.worker.gradients.reduction import CanonicalReducer
from elasticd.worker.hosting import assign

from .communicator_world import run_ranks


class Counting(Layout):
    """Counts the allocated gradients."""

    made = 0

    def allocate(self) -> Gradient:
        self.made += 1
        return super().allocate()


def worker(communicator: Communicator, n: int, losses: int = 0) -> tuple[int, list[torch.Tensor]]:
    """Train four steps. Returns the most gradients kept at once, and the last step's gradient."""
    model = torch.nn.Sequential(torch.nn.Linear(7, 5, bias=False), torch.nn.Linear(5, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view(parameter.shape))
    layout = Counting(list(model.parameters()), padding=n)
    accumulation = Accumulation(layout, n, canonical=True, overlap=True)
    accumulation.prepare()
    ranges = assign(n, [True] * communicator.size)
    mine = ranges[communicator.rank]
    reducer = CanonicalReducer(communicator, ranges, n, layout)
    found: list[torch.Tensor] = []
    most = 0
    for step in range(4 + losses):
        accumulation.begin()
        for v in mine:
            accumulation.expect(v, 1.0, reducer if v == mine[-1] else None)
            model(torch.full((2, 7), 0.1 * (v + 1))).square().mean().backward()
            accumulation.completed()
        gradient = accumulation.reduce(reducer, lambda: None)
        found = [view.clone() for view in gradient.views]
        accumulation.applied()
        most = max(most, layout.made)
        if step < losses:  # the others are gone: abandoned operations own the old memory
            layout.made = 0
            accumulation.forget()
            reducer = CanonicalReducer(communicator, ranges, n, layout)
    return most, found


@pytest.mark.parametrize("losses", [0, 3])
@pytest.mark.parametrize(("workers", "n"), [(1, 1), (1, 4), (1, 8), (2, 2), (2, 8), (4, 4), (4, 8)])
def test_a_worker_keeps_few_gradients(workers: int, n: int, losses: int) -> None:
    def run(communicator: Communicator) -> tuple[int, list[torch.Tensor]]:
        return worker(communicator, n, losses)

    results = [run(Communicator.alone())] if workers == 1 else run_ranks(workers, run)
    expected = worker(Communicator.alone(), n)[1]
    for most, gradient in results:
        assert most <= math.log2(n // workers) + 1
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(gradient, expected, strict=True))
