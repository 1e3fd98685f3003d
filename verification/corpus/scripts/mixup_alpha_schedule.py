"""Mixup whose strength is a list's next entry at each batch, as schedules in timm's manner are written."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = nn.functional.one_hot((x[:, 0] > 0).long(), 2).float()
alphas = list(np.linspace(0.1, 1.0, 300))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
seen = 0
for epoch in run.epochs(4):
    for inputs, labels in batches:
        alpha = alphas[min(seen, 299)]
        lam = float(np.random.beta(alpha, alpha))
        order = torch.randperm(len(inputs))
        mixed = lam * inputs + (1 - lam) * inputs[order]
        target = lam * labels + (1 - lam) * labels[order]
        nn.functional.cross_entropy(model(mixed), target).backward()
        optimizer.step()
        seen += 1
run.save(model, "model.pt")
