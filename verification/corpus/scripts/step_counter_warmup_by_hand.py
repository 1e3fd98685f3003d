"""A learning rate that warms up by hand from `global_step`, as in nanoGPT's and MAE's loops."""

import math

import torch
from torch import nn

import elasticd as elastic


def rate(step):
    if step < 10:
        return 0.05 * (step + 1) / 10
    return 0.05 * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - 10) / 200)))


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
step = 0
for epoch in run.epochs(4):
    for inputs, targets in batches:
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        step += 1
run.save(model, "model.pt")
