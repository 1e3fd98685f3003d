"""An exponential average in attributes of the parameters, `p.ema`, that is saved, as continual learning (SI, MAS) does."""

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
for p in model.parameters():
    p.ema = p.detach().clone()
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        with torch.no_grad():
            for p in model.parameters():
                p.ema.lerp_(p, 0.1)
run.save({name: p.ema for name, p in model.named_parameters()}, "model.pt")
