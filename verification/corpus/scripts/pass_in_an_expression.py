"""`losses = list(map(train_step, batches))` decides the next epoch's rate, as functional loops have it."""

import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
X = torch.randn(128, 8)
Y = (X[:, 0] + X[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (X, Y), batch_size=4)


def train_step(batch):
    x, y = batch
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


for epoch in run.epochs(4):
    losses = list(map(train_step, batches))
    for group in optimizer.param_groups:
        group["lr"] = 0.2 / (1 + sum(losses) / len(losses))
run.save(model, "model.pt")
