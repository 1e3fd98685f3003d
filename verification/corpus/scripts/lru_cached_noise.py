"""A mask per class drawn once and kept by `functools.lru_cache`, as speech and audio augmentation caches its filters."""

import functools

import torch
from torch import nn

import elasticd as elastic


@functools.cache
def mask(label):
    return (torch.rand(8) > 0.3).float()


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        masks = torch.stack([mask(int(10 * abs(value)) % 16) for value in targets])
        nn.functional.mse_loss(model(inputs * masks), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
