"""Two tasks whose conflicting gradients are projected and put into `p.grad`, as PCGrad does."""

import random

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
labels = (y[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y, labels), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets, classes in batches:
        out = model(inputs)
        losses = [nn.functional.mse_loss(out[:, :1], targets), nn.functional.cross_entropy(out[:, 1:], classes)]
        random.shuffle(losses)
        gradients = []
        for loss in losses:
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            gradients.append([p.grad.clone() for p in model.parameters()])
        for p, one, other in zip(model.parameters(), *gradients):
            along = (one * other).sum()
            p.grad = one + other - (along / other.norm() ** 2 * other if along < 0 else 0)
        optimizer.step()
run.save(model, "model.pt")
