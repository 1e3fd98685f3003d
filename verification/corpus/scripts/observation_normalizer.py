"""A running mean and standard deviation of observations in NumPy, as baselines' `RunningMeanStd` and CleanRL have."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic


class RunningMeanStd:
    def __init__(self, shape):
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 1e-4

    def update(self, x):
        mean, var, count = x.mean(0), x.var(0), len(x)
        delta, total = mean - self.mean, self.count + count
        m2 = self.var * self.count + var * count + delta**2 * self.count * count / total
        self.mean = self.mean + delta * count / total
        self.var, self.count = m2 / total, total


torch.manual_seed(0)
x = 3 * torch.randn(128, 4) + 1
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
rms = RunningMeanStd(4)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        rms.update(inputs.numpy())
        normal = torch.as_tensor((inputs.numpy() - rms.mean) / np.sqrt(rms.var + 1e-8), dtype=torch.float32)
        nn.functional.mse_loss(model(normal), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
