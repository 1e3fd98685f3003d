"""`correct += …` in the function of `run.evaluate`, and a threshold of it that halves the rate."""

import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
X = torch.randn(128, 8)
Y = (X[:, 0] + X[:, 1] + 0.3 * torch.randn(128) > 0).long()
V = (torch.randn(64, 8), torch.randint(0, 2, (64,)))
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

correct = 0


def score(batch):
    global correct
    x, y = batch
    correct += (model(x).argmax(1) == y).sum().item()
    return 0


run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (X, Y), batch_size=4)
for epoch in run.epochs(4):
    for x, y in batches:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    correct = 0
    run.evaluate(score, V, batch_size=8)
    if correct / 64 < 0.4:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
run.save(model, "model.pt")
