"""Scripts of jobs whose optimizer state is divided: they give their model alone, since no worker has the whole state."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import training_cases
from torch import nn
from torch.nn import functional
from training_cases import network

from elasticd.worker.run import Run

train = partial(training_cases.train, states=False)


def plain(run: Run) -> list[Any]:
    model = network()
    return train(run, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), max_grad_norm=0.5)


def several_types(run: Run) -> list[Any]:
    """Parameters of three types: one is tied, one has a transposed memory, one has no elements, and some have no gradient."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(6)
            self.first = nn.Linear(12, 12)
            self.tied = nn.Linear(12, 12)
            self.tied.weight = self.first.weight
            self.turned = nn.Parameter(torch.randn(12, 200).t())
            self.empty = nn.Parameter(torch.zeros(5, 0))
            self.middle = nn.Linear(200, 80).to(torch.bfloat16)
            self.last = nn.Linear(80, 3).to(torch.float64)
            self.unused = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = functional.linear(self.tied(self.first(x).relu()), self.turned)
            return torch.as_tensor(self.last(self.middle(x.bfloat16()).relu().double()))

    model = Model()
    return train(run, model, torch.optim.AdamW(model.parameters(), lr=0.01))


def several_optimizers(run: Run) -> list[Any]:
    """With schedulers; a parameter is trained that no optimizer has."""
    model = network()
    first = torch.optim.AdamW(model[0].parameters(), lr=0.01, amsgrad=True)
    second = torch.optim.SGD([model[1].weight, *model[4:].parameters()], lr=0.1, momentum=0.9, nesterov=True)
    schedulers = [
        torch.optim.lr_scheduler.LinearLR(first, 0.1, total_iters=8),
        torch.optim.lr_scheduler.CosineAnnealingLR(second, 20),
    ]
    return train(run, model, [first, second], scheduler=schedulers)


def state_from_before(run: Run) -> list[Any]:
    """Adagrad begins with a state, and AdamW with one that the script has loaded."""
    model = network()
    first = torch.optim.Adagrad(model[0].parameters(), lr=0.05, initial_accumulator_value=0.3)
    second = torch.optim.AdamW([*model[1].parameters(), *model[4:].parameters()], lr=0.01)
    functional.cross_entropy(model(torch.ones(4, 12)), torch.zeros(4, dtype=torch.long)).backward()
    second.step()
    model.zero_grad()
    return train(run, model, [first, second])


def changed_between_epochs(run: Run) -> list[Any]:
    """Parameters get other memory, and groups another rate."""
    model = network()
    groups = [{"params": [*model[0].parameters()]}, {"params": [*model[4:].parameters()], "lr": 0.01}]
    optimizer = torch.optim.AdamW(groups, lr=0.05)

    def change(epoch: int) -> None:
        for parameter in model.parameters():
            parameter.data = parameter.data.clamp(-0.3, 0.3)
        optimizer.param_groups[1]["lr"] *= 0.5

    return train(run, model, optimizer, change)


def grown(run: Run) -> list[Any]:
    """The batch doubles, and the rate moves to its double in some steps."""
    run.scaling("manual", max_factor=2, ramp_steps=5)
    model = network()

    def grow(epoch: int) -> None:
        if epoch == 1:
            run.set_batch(2)

    return train(run, model, torch.optim.AdamW(model.parameters(), lr=0.02), grow)
