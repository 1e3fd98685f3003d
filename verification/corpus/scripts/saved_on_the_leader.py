"""`if rank == 0: save` after each epoch, as scripts for DistributedDataParallel have it."""

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
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    if run.is_leader:
        run.save({"model": model.state_dict(), "epoch": epoch}, "checkpoint.pt")
run.save(model, "model.pt")
