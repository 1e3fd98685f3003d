"""Active learning: after each epoch indices move from the pool to the labelled set by entropy."""

import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
X = torch.randn(128, 8)
Y = (X[:, 0] + X[:, 1] + 0.3 * torch.randn(128) > 0).long()
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

pool, labelled = list(range(64, 128)), set(range(64))
mask = torch.zeros(128)
mask[:64] = 1
data = list(zip(X, Y, range(128)))
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=4)
for epoch in run.epochs(4):
    for x, y, i in batches:
        loss = (F.cross_entropy(model(x), y, reduction="none") * mask[i]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        p = model(X[pool]).softmax(1)
    entropy = -(p * p.log()).sum(1)
    chosen = [pool[j] for j in entropy.topk(8).indices.tolist()]
    for c in chosen:
        pool.remove(c)
        labelled.add(c)
        mask[c] = 1
run.save({"pool": pool}, "pool.pt")
run.save(model, "model.pt")
