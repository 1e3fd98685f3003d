"""Full-batch training: an epoch is one step, and the loss is printed behind the loop, as graph networks (GCN) do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(16, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(32):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
run.save(model, "model.pt")
