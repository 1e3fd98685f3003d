"""Weights of two tasks as parameters that are trained, as Kendall's multi-task uncertainty."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = torch.stack([x.sum(1), 3 * x[:, 0]], 1)
model = nn.Linear(8, 2)
log_variance = nn.Parameter(torch.zeros(2))
optimizer = torch.optim.Adam([*model.parameters(), log_variance], lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        losses = ((model(inputs) - targets) ** 2).mean(0)
        ((-log_variance).exp() * losses + log_variance).sum().backward()
        optimizer.step()
run.save({"model": model.state_dict(), "weights": log_variance.detach()}, "model.pt")
