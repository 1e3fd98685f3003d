"""DDPM with sampled `t` and an EMA that begins after some steps by its own `step`, as dome272's and lucidrains' EMA classes."""

import copy

import torch
from torch import nn

import elasticd as elastic


class Ema:
    def __init__(self, beta):
        self.beta = beta
        self.step = 0

    def step_ema(self, ema_model, model, start=10):
        if self.step < start:
            ema_model.load_state_dict(model.state_dict())
        else:
            for old, new in zip(ema_model.parameters(), model.parameters()):
                old.data = old.data * self.beta + (1 - self.beta) * new.data
        self.step += 1


torch.manual_seed(0)
x = torch.randn(128, 4)
alpha_hat = torch.cumprod(1 - torch.linspace(1e-3, 0.2, 50), 0)
model = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
ema = Ema(0.95)
ema_model = copy.deepcopy(model).eval().requires_grad_(False)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        t = torch.randint(0, 50, (len(inputs),))
        noise = torch.randn_like(inputs)
        noisy = alpha_hat[t].sqrt()[:, None] * inputs + (1 - alpha_hat[t]).sqrt()[:, None] * noise
        nn.functional.mse_loss(model(torch.cat([noisy, t[:, None] / 50], 1)), noise).backward()
        optimizer.step()
        ema.step_ema(ema_model, model)
run.save(ema_model, "model.pt")
