"""Phases as an `Enum` that a `match` reads, changed by the running loss, as newer trainers are written."""

import enum

import torch
from torch import nn

import elasticd as elastic


class Phase(enum.Enum):
    WARM_UP = enum.auto()
    SPARSE = enum.auto()


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
phase, seen = Phase.WARM_UP, 0
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(6):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        match phase:
            case Phase.WARM_UP:
                seen += 1
                if seen > 160:
                    phase = Phase.SPARSE
            case Phase.SPARSE:
                loss = loss + 0.05 * model.weight.abs().sum()
        loss.backward()
        optimizer.step()
run.save(model, "model.pt")
