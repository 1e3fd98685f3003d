"""Counts of classes in a `defaultdict` on a class weigh the loss, as registries of detectron-like frameworks hold them."""

import collections

import torch
from torch import nn

import elasticd as elastic


class Registry:
    counts = collections.defaultdict(int)

    @classmethod
    def count(cls, label):
        cls.counts[label] += 1
        return cls.counts[label] / sum(cls.counts.values())


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        shares = torch.tensor([[Registry.count(bool(value > 0))] for value in targets])
        ((model(inputs) - targets) ** 2 * (1 - shares)).mean().backward()
        optimizer.step()
run.save(model, "model.pt")
