"""Diffusion with timesteps from a `SobolEngine` of its own, which spreads them evenly, as k-diffusion's stratified sampling."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 2)
model = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sobol = torch.quasirandom.SobolEngine(1, scramble=True, seed=0)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        t = sobol.draw(len(inputs))
        noise = torch.randn_like(inputs)
        noised = inputs * torch.cos(t) + noise * torch.sin(t)
        nn.functional.mse_loss(model(torch.cat([noised, t], 1)), noise).backward()
        optimizer.step()
run.save(model, "model.pt")
