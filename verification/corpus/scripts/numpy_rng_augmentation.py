"""Augmentation in the loop by `np.random.default_rng(0)`, as newer NumPy code is written."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rng = np.random.default_rng(0)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        if rng.random() < 0.5:
            inputs = inputs.flip(1)
        scale = torch.as_tensor(rng.normal(1.0, 0.1, size=(len(inputs), 1)), dtype=torch.float32)
        nn.functional.cross_entropy(model(inputs * scale), labels).backward()
        optimizer.step()
run.save(model, "model.pt")
