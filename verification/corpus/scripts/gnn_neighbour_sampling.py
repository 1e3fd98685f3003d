"""A graph network that samples neighbours by a NumPy `RandomState` of its own, as GraphSAGE's loaders do."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
features = torch.randn(128, 6)
labels = (features[:, 0] > 0).long()
neighbours = torch.randint(0, 128, (128, 10))
model = nn.Linear(12, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
sampler = np.random.RandomState(11)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (torch.arange(128), labels), batch_size=4)
for epoch in run.epochs(4):
    for nodes, target in batches:
        columns = torch.as_tensor(sampler.randint(0, 10, size=(len(nodes), 3)))
        around = features[neighbours[nodes].gather(1, columns)].mean(1)
        logits = model(torch.cat([features[nodes], around], 1))
        nn.functional.cross_entropy(logits, target).backward()
        optimizer.step()
run.save(model, "model.pt")
