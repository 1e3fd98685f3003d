"""Gradients of single samples by `torch.func.vmap(grad(…))`, clipped and put into `p.grad`, as DP-SGD in functorch."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def sample_loss(params, inputs, target):
    return nn.functional.mse_loss(functional_call(model, params, (inputs[None],)), target[None])


run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        params = {name: p.detach() for name, p in model.named_parameters()}
        each = vmap(grad(sample_loss), in_dims=(None, 0, 0))(params, inputs, targets)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        scale = (1.0 / norms).clamp(max=1.0)
        for name, p in model.named_parameters():
            p.grad = torch.einsum("n,n...->...", scale, each[name]) / len(inputs)
        optimizer.step()
run.save(model, "model.pt")
