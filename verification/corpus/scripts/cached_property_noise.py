"""A projection drawn at its first use by `functools.cached_property`, as lazily built feature extractors are."""

import functools

import torch
from torch import nn

import elasticd as elastic


class Features:
    @functools.cached_property
    def projection(self):
        return torch.eye(8) + 0.2 * torch.randn(8, 8)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
features = Features()
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs @ features.projection), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
