"""A cyclical learning rate from a count of batches, set behind `optimizer.step()`, as snapshot ensembles do."""

import math

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
iteration = 0
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        iteration += 1
        optimizer.param_groups[0]["lr"] = 0.025 * (1 + math.cos(math.pi * (iteration % 20) / 20))
run.save(model, "model.pt")
