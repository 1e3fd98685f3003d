"""A prefetcher that reads the next batch before the present one is used, as apex's and YOLOX's `DataPrefetcher`."""

import torch
from torch import nn

import elasticd as elastic


class DataPrefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None

    def next(self):
        inputs, target = self.next_input, self.next_target
        if inputs is not None:
            self.preload()
        return inputs, target


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    prefetcher = DataPrefetcher(batches)
    inputs, targets = prefetcher.next()
    while inputs is not None:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        inputs, targets = prefetcher.next()
run.save(model, "model.pt")
