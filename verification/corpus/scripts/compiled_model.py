"""`torch.compile(model)` with an eager backend and a step counter nowhere, as nanoGPT's default."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
compiled = torch.compile(model, backend="eager", dynamic=True)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(compiled(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
