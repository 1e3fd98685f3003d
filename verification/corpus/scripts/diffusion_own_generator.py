"""Diffusion with noise drawn from a `torch.Generator` of the script's own, as k-diffusion and diffusers' scripts allow."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 4)
model = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(42)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        t = torch.rand(len(inputs), 1, generator=generator)
        noise = torch.randn(inputs.shape, generator=generator)
        noisy = (1 - t) * inputs + t * noise
        nn.functional.mse_loss(model(torch.cat([noisy, t], 1)), noise).backward()
        optimizer.step()
run.save(model, "model.pt")
