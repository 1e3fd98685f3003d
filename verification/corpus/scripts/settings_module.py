"""The loop counts in a variable of a settings module, `settings.step += 1`, that a helper there reads."""

import shared_settings as settings
import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(6):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss + settings.sparsity() * model.weight.abs().sum()).backward()
        optimizer.step()
        settings.step += 1
run.save(model, "model.pt")
