"""Priorities by index that follow the losses, from which weights of samples are computed, as prioritized replay does."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
priorities = np.ones(128)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y, torch.arange(128)), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets, index in batches:
        weights = torch.as_tensor(priorities[index.numpy()] / priorities.mean(), dtype=torch.float32)
        errors = (model(inputs) - targets).squeeze(1)
        (weights * errors**2).mean().backward()
        optimizer.step()
        priorities[index.numpy()] = 0.5 * priorities[index.numpy()] + 0.5 * errors.detach().abs().numpy()
run.save(model, "model.pt")
