"""A `WeightedRandomSampler` by the classes' frequencies, as imbalanced classification scripts use."""

import torch
from torch import nn
from torch.utils.data import WeightedRandomSampler

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 1).long()
weights = 1.0 / torch.bincount(y)[y].double()
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
sampler = WeightedRandomSampler(weights, 128)
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4, sampler=sampler)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
run.save(model, "model.pt")
