"""A moving average in threading.local, as fvcore and detectron2 keep their event storage."""
import itertools, math, random, collections, functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

import threading
_STORE = threading.local()
_STORE.ema = 1.0
torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        loss = F.mse_loss(model(inputs), targets)
        _STORE.ema = 0.9 * _STORE.ema + 0.1 * loss.item()
        (loss / (1 + _STORE.ema)).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
