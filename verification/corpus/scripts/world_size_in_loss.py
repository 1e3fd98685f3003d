"""A loss that is scaled by the number of processes, as scripts do that undo DDP's mean."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets) * run.world_size
        loss.backward()
        optimizer.step()
run.save(model, "model.pt")
