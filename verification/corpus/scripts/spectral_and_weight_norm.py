"""Spectral norm and weight norm by parametrizations, as SN-GAN and WaveNet code."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(spectral_norm(nn.Linear(8, 16)), nn.ReLU(), weight_norm(nn.Linear(16, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
