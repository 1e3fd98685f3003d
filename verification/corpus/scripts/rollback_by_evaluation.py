"""run.every keeps the best weights in a plain dict and rolls back when the loss rises (spike recovery)."""
import itertools, math, random, collections, functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

import copy
torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
y[::17] *= 6
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.12)
good = {"loss": float("inf"), "weights": None, "rollbacks": 0}
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
@run.every(steps=3)
def watch():
    loss = float(run.evaluate(lambda b: F.mse_loss(model(b[0]), b[1], reduction="sum"), (x, y), batch_size=32))
    if loss <= good["loss"]:
        good["loss"], good["weights"] = loss, copy.deepcopy(model.state_dict())
    else:
        model.load_state_dict(good["weights"])
        good["rollbacks"] += 1
        optimizer.param_groups[0]["lr"] *= 0.7
for epoch in run.epochs(4):
    for inputs, targets in batches:
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
