"""torch's OneCycleLR at each batch, with momentum cycled too, as fast.ai's recipes in PyTorch."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=4 * len(batches) + 1)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
run.save(model, "model.pt")
