"""Anchors of the first weights, appended to a list at an epoch's beginning."""
import itertools, math, random, collections, functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

anchors = []
torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)

run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(5):
    with torch.no_grad():
        anchors.append(float(model(x).mean()))
    for inputs, targets in batches:
        (F.mse_loss(model(inputs), targets) + 0.3 * (model(inputs).mean() - sum(anchors) / len(anchors)) ** 2).backward()
        optimizer.step()
        optimizer.zero_grad()

run.save(model, "model.pt")
