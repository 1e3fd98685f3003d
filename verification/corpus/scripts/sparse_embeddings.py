"""`nn.Embedding(sparse=True)` with `SparseAdam`, as word vectors and recommenders use."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randint(0, 30, (128, 2))
model = nn.Embedding(30, 6, sparse=True)
optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (pairs,) in batches:
        a, b = model(pairs[:, 0]), model(pairs[:, 1])
        (-nn.functional.logsigmoid((a * b).sum(1)).mean()).backward()
        optimizer.step()
run.save(model, "model.pt")
