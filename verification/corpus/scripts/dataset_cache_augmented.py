"""A dataset that caches its samples *after* random augmentation, so that each is drawn once for each process."""

import torch
from torch import nn

import elasticd as elastic


class Cached(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(128, 8)
        self.cache = {}

    def __len__(self):
        return 128

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = self.x[i] + 0.3 * torch.randn(8)
        return self.cache[i], self.x[i].sum()[None]


torch.manual_seed(0)
dataset = Cached()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, dataset, batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
