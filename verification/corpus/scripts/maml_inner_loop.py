"""MAML: inner steps on fast weights by `functional_call` and `autograd.grad`, as learn2learn and its ports."""

import torch
from torch import nn
from torch.func import functional_call

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 10, 3)
y = x.sum(2, keepdim=True) * torch.randn(128, 1, 1)
model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for tasks, targets in batches:
        outer = 0.0
        for inputs, wanted in zip(tasks, targets):
            fast = dict(model.named_parameters())
            for _ in range(2):
                loss = nn.functional.mse_loss(functional_call(model, fast, (inputs[:5],)), wanted[:5])
                grads = torch.autograd.grad(loss, fast.values(), create_graph=True)
                fast = {name: p - 0.05 * g for (name, p), g in zip(fast.items(), grads)}
            outer = outer + nn.functional.mse_loss(functional_call(model, fast, (inputs[5:],)), wanted[5:])
        (outer / len(tasks)).backward()
        optimizer.step()
run.save(model, "model.pt")
