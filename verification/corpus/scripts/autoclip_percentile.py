"""Gradients clipped at a percentile of the norms seen so far, as AutoClip does."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
grad_history = []
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        norm = sum(p.grad.norm() ** 2 for p in model.parameters() if p.grad is not None) ** 0.5
        grad_history.append(float(norm))
        run.clip(float(np.percentile(grad_history, 50)))
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
