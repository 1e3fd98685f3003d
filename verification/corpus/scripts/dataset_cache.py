"""A dataset that keeps what it has read in a dict, as image datasets with `cache=True`."""

import torch
from torch import nn

import elasticd as elastic


class Cached(torch.utils.data.Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 128

    def __getitem__(self, i):
        if i not in self.cache:
            g = torch.Generator().manual_seed(i)
            self.cache[i] = torch.randn(8, generator=g)
        x = self.cache[i]
        return x + 0.05 * torch.randn(8), x.sum()[None]


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, Cached(), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
