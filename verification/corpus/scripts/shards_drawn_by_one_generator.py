"""Shards with a shuffle pool of the script in `open`, whose generator is a module-wide random.Random."""
import itertools, math, random, collections, functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
rng = random.Random(0)
def read(part):
    pool = []
    for i in range(part * 16, part * 16 + 16):
        pool.append(i)
        if len(pool) >= 4:
            j = pool.pop(rng.randrange(len(pool)))
            yield x[j], y[j]
    for j in pool:
        yield x[j], y[j]
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, elastic.Shards(list(range(8)), open=read), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
