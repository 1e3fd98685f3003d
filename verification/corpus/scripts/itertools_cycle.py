"""`zip` with `itertools.cycle` over a smaller domain's batches, as domain adaptation (DANN) does."""

import itertools

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
target_domain = list((torch.randn(20, 8) + 1).split(4))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
targets = itertools.cycle(target_domain)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        other = next(targets)
        gap = (model(inputs).mean(0) - model(other).mean(0)).pow(2).sum()
        (nn.functional.cross_entropy(model(inputs), labels) + 0.5 * gap).backward()
        optimizer.step()
run.save(model, "model.pt")
