"""Noise from torch's, NumPy's and Python's global generators in the body, as most augmentation code."""

import random

import numpy as np
import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        if random.random() < 0.5:
            inputs = inputs.flip(1)
        inputs = inputs * float(np.random.uniform(0.9, 1.1)) + 0.05 * torch.randn_like(inputs)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
run.save(model, "model.pt")
