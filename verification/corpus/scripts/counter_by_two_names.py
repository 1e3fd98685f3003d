"""`state = trainer.state`: the counter grows by one name, and decides by the other."""

import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
X = torch.randn(128, 8)
Y = (X[:, 0] + X[:, 1] + 0.3 * torch.randn(128) > 0).long()
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)


class State:
    step = 0


class Trainer:
    def __init__(self):
        self.state = State()
        self.memory = []


trainer = Trainer()
state = trainer.state
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (X, Y), batch_size=4)
for epoch in run.epochs(4):
    for x, y in batches:
        z = model(x)
        loss = F.cross_entropy(z, y)
        if trainer.memory:
            loss = loss + 0.1 * (z.mean(0) - trainer.memory[-1]).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if trainer.state.step % 70 == 69:
            trainer.memory.clear()
            trainer.memory.append(z.mean(0).detach())
        state.step += 1
run.save(model, "model.pt")
