"""A hook counts its calls as its own attribute and adds noise that falls with them, as exploration noise in RL code."""

import torch
from torch import nn

import elasticd as elastic


def noisy(module, arguments, output):
    noisy.calls += 1
    return output + torch.randn_like(output) / noisy.calls


noisy.calls = 0


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
model.register_forward_hook(noisy)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
