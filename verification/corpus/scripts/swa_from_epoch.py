"""Stochastic weight averaging that begins at an epoch, with SWALR, as PyTorch's page on SWA."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
averaged = AveragedModel(model)
swa_scheduler = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    if epoch >= 1:
        averaged.update_parameters(model)
        swa_scheduler.step()
run.save(averaged, "averaged.pt")
run.save(model, "model.pt")
