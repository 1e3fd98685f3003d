"""A default argument that is a list remembers earlier calls, as helpers written in haste do."""

import torch
from torch import nn

import elasticd as elastic


def weight(new, seen=[]):
    seen.append(new)
    return 1 / (0.5 + sum(seen[-20:]) / len(seen[-20:]))


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss * weight(loss.item())).backward()
        optimizer.step()
run.save(model, "model.pt")
