"""A counter and a running loss only for a line in the log, as nearly every script has."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
iterations = 0
for epoch in run.epochs(4):
    running = 0.0
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        running += loss.item()
        iterations += 1
        if iterations % 10 == 0:
            print(f"iteration {iterations}: {running / 10:.4f}")
            running = 0.0
run.save(model, "model.pt")
