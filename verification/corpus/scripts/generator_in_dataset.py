"""A dataset that augments with a `numpy.random.default_rng` of its own, as many newer folder datasets do."""

import numpy
import torch
from torch import nn

import elasticd as elastic


class Noisy(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y
        self.rng = numpy.random.default_rng(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        noise = torch.from_numpy(self.rng.normal(0, 0.1, 8)).float()
        return self.x[i] + noise, self.y[i]


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
dataset = Noisy(x, y)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, dataset, batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
