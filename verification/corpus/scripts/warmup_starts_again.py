"""An unusual batch starts the warm-up again: `reset()` calls `__init__`, which sets the counter of bodies to 0."""

import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
X = torch.randn(128, 8)
Y = (X[:, 0] + X[:, 1] + 0.3 * torch.randn(128) > 0).long()
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)


class Warmup:
    def __init__(self):
        self.n = 0

    def reset(self):
        self.__init__()


warmup = Warmup()
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (X, Y), batch_size=4)
for epoch in run.epochs(4):
    for x, y in batches:
        (F.cross_entropy(model(x), y) / (1 + 0.05 * warmup.n)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if epoch == 2 and float(x.abs().max()) > 2.9:
            warmup.reset()
        warmup.n += 1
run.save(model, "model.pt")
