"""Weights of several tasks that follow the ratio of their losses to the first ones, as GradNorm and DWA do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = torch.stack([x.sum(1), 3 * x[:, 0]], 1)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
initial = None
weights = torch.ones(2)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        losses = ((model(inputs) - targets) ** 2).mean(0)
        if initial is None:
            initial = losses.detach()
        (weights * losses).sum().backward()
        optimizer.step()
        ratio = losses.detach() / initial
        weights = 0.9 * weights + 0.1 * 2 * ratio / ratio.sum()
run.save(model, "model.pt")
