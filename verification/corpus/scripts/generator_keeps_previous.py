"""A pipeline of generators around the batches: augment, then mix with the previous batch."""
import itertools, math, random, collections, functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

def augmented(batches):
    for x, y in batches:
        yield x + 0.01 * torch.randn_like(x), y
def with_previous(batches):
    previous = None
    for x, y in batches:
        if previous is not None and previous[0].shape == x.shape:
            yield 0.8 * x + 0.2 * previous[0], 0.8 * y + 0.2 * previous[1]
        else:
            yield x, y
        previous = x, y
torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)

run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in with_previous(augmented(batches)):
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
