"""`torch.nn.utils.prune` before training, whose mask is a buffer, as PyTorch's pruning tutorial."""

import torch
from torch import nn
from torch.nn.utils import prune

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x[:, :4].sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
prune.l1_unstructured(model[0], "weight", 0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
