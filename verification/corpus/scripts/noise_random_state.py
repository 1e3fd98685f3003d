"""Noise on the inputs from a NumPy `RandomState` of the script's own, as regularizers of tabular networks have it."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
rng = np.random.RandomState(1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        noise = torch.from_numpy(rng.normal(0, 0.1, inputs.shape).astype(np.float32))
        nn.functional.mse_loss(model(inputs + noise), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
