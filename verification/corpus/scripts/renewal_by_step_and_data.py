"""`renew = step % 70 == 69 and …` early in the body, and `if renew: memory.clear()` at its end."""

import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
X = torch.randn(128, 8)
Y = (X[:, 0] + X[:, 1] + 0.3 * torch.randn(128) > 0).long()
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
memory, step = [], 0
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (X, Y), batch_size=4)
for epoch in run.epochs(4):
    for x, y in batches:
        renew = step % 70 == 69 and float(x.std()) > 0
        z = model(x)
        loss = F.cross_entropy(z, y)
        if memory:
            loss = loss + 0.1 * (z.mean(0) - memory[-1]).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if renew:
            memory.clear()
            memory.append(z.mean(0).detach())
        step += 1
run.save(model, "model.pt")
