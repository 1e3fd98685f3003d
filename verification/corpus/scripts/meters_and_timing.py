"""Meters, a history of losses, throughput and a timer for the log, as ImageNet's `AverageMeter`."""

import time

import torch
from torch import nn

import elasticd as elastic


class AverageMeter:
    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def __str__(self):
        return f"{self.name} {self.sum / max(1, self.count):.4f}"


torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses, times = AverageMeter("loss"), AverageMeter("time")
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    losses.reset()
    end = time.time()
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(inputs))
        times.update(time.time() - end)
        end = time.time()
    print(losses, times)
run.save(model, "model.pt")
