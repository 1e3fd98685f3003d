"""Statistics changed under another name, `stats = tracker.stats`, and read by a method, as tracking helpers do."""

import torch
from torch import nn

import elasticd as elastic


class Tracker:
    def __init__(self):
        self.stats = {"seen": 0, "loss": 0.0}

    def weight(self):
        return 0.05 if self.stats["seen"] > 640 else 0.0


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
tracker = Tracker()
stats = tracker.stats
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(6):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss + tracker.weight() * model.weight.abs().sum()).backward()
        optimizer.step()
        stats["seen"] += len(inputs)
        stats["loss"] += loss.item()
run.save(model, "model.pt")
