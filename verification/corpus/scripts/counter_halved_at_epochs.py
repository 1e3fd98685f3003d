"""A counter of bodies that code between epochs halves, and that the loss reads."""

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

n = 0


@torch.no_grad()
def validate():
    return F.cross_entropy(model(V[0]), V[1]).item()


run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (X, Y), batch_size=4)
for epoch in run.epochs(4):
    for x, y in batches:
        (F.cross_entropy(model(x), y) / (1 + 0.05 * n)).backward()
        optimizer.step()
        optimizer.zero_grad()
        n += 1
    if validate() > 0.5:
        n //= 2
run.save({"n": n}, "n.pt")
run.save(model, "model.pt")
