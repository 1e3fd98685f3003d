"""An exponential average kept as a dict by parameter names, as the `EMA` class of many Chinese NLP baselines does."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        for name, p in model.named_parameters():
            shadow[name] = 0.95 * shadow[name] + 0.05 * p.detach()
run.save(shadow, "ema.pt")
run.save(model, "model.pt")
