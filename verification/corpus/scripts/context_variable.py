"""A temperature in a `contextvars.ContextVar` that falls at each batch, as configuration contexts of newer code hold theirs."""

import contextvars

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
temperature = contextvars.ContextVar("temperature", default=1.0)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        temperature.set(max(0.3, temperature.get() * 0.98))
        nn.functional.mse_loss(model(inputs) * temperature.get(), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
