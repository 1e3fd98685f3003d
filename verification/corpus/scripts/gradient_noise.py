"""Noise with a falling variance added to gradients after `backward()`, as in "Adding gradient noise" ports."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
t = 0
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p.grad), alpha=0.1 / (1 + t) ** 0.55)
        optimizer.step()
        t += 1
run.save(model, "model.pt")
