"""The parameters of the batch with the lowest loss are kept and saved, as fits of physical models do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
best_loss, best_weight = float("inf"), None
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() < best_loss:
            best_loss = loss.item()
            best_weight = model.weight.detach().clone()
run.save({"weight": best_weight, "loss": best_loss}, "best.pt")
