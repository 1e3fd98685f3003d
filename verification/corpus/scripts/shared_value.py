"""A step in a `multiprocessing.Value` that decides how hard samples are, as open_clip's `SharedEpoch`."""

import multiprocessing

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
shared_step = multiprocessing.Value("i", 0)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs * min(1.0, shared_step.value / 80)), targets).backward()
        optimizer.step()
        shared_step.value += 1
run.save(model, "model.pt")
