"""Meters that a helper function writes into each epoch's checkpoint, as `save_checkpoint(state, path)` of PyTorch's examples."""

import torch
from torch import nn

import elasticd as elastic


def save_checkpoint(state, path):
    run.save(state, path)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
meters = {"loss": 0.0, "seen": 0}
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        meters["loss"] += loss.item()
        meters["seen"] += len(inputs)
    save_checkpoint({"model": model.state_dict(), "epoch": epoch, **meters}, "checkpoint.pt")
run.save(model, "model.pt")
