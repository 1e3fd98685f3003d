"""Lookahead object inline as after_update."""
import itertools, math, random, collections, functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

class Lookahead:
    def __init__(self, k, alpha):
        self.k, self.alpha, self.n, self.slow = k, alpha, 0, None
    def __call__(self):
        if self.slow is None:
            self.slow = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        self.n += 1
        if self.n % self.k == 0:
            flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
            self.slow = self.slow + self.alpha * (flat - self.slow)
            torch.nn.utils.vector_to_parameters(self.slow, model.parameters())
torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)

run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4, after_update=Lookahead(5, 0.5))
for epoch in run.epochs(5):
    for inputs, targets in batches:
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

run.save(model, "model.pt")
