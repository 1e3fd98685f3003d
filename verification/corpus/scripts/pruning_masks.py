"""Masks of magnitude pruning in a dict, made anew at epochs' beginnings and applied in the forward pass, as lottery tickets."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x[:, :4].sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
mask = torch.ones_like(model.weight)
for epoch in run.epochs(4):
    if epoch % 2 == 1:
        size = (model.weight.detach().abs() * mask).flatten()
        mask = (model.weight.detach().abs() >= size.kthvalue(2 * (epoch + 1) // 2)[0]).float() * mask
    for inputs, targets in batches:
        output = nn.functional.linear(inputs, model.weight * mask, model.bias)
        nn.functional.mse_loss(output, targets).backward()
        optimizer.step()
run.save(model, "model.pt")
