"""`ema = deepcopy(model)` with parameters moved after each update, as in guided-diffusion and StyleGAN ports."""

import copy

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
ema = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        with torch.no_grad():
            for average, p in zip(ema.parameters(), model.parameters()):
                average.mul_(0.95).add_(p, alpha=0.05)
run.save(ema, "model.pt")
