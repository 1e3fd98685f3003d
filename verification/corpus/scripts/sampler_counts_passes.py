"""A sampler with its own epoch counter and a repeated-augmentation offset, advanced in `__iter__`."""
import itertools, math, random, collections, functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
class Repeated(torch.utils.data.Sampler):
    def __init__(self, n):
        self.n, self.passes = n, 0
    def __len__(self):
        return self.n
    def __iter__(self):
        self.passes += 1
        order = list(range(self.n))
        random.Random(self.passes).shuffle(order)
        return iter([i // (1 + self.passes % 2) for i in order])
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4, sampler=Repeated(128))
for epoch in run.epochs(4):
    for inputs, targets in batches:
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
