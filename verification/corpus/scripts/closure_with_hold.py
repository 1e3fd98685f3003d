"""A function made by a function holds a weight at zero for its first calls, as schedules with a warm-up phase do."""

import torch
from torch import nn

import elasticd as elastic


def hold_then(value, calls):
    done = 0

    def schedule():
        nonlocal done
        done += 1
        return 0.0 if done <= calls else value

    return schedule


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
sparsity = hold_then(0.05, calls=160)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(6):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss + sparsity() * model.weight.abs().sum()).backward()
        optimizer.step()
run.save(model, "model.pt")
