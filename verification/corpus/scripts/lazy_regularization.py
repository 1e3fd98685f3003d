"""A regularizer at every 16th batch with a running mean of path lengths, as StyleGAN2's ports do."""

import math

import torch
from torch import autograd, nn

import elasticd as elastic

torch.manual_seed(0)
real = torch.randn(128, 8) * 2 + 1
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.0, 0.99))
g_reg_every = 16
mean_path_length = 0


def path_regularize(fake, latents, mean_path_length, decay=0.1):
    noise = torch.randn_like(fake) / math.sqrt(fake.shape[1])
    (grad,) = autograd.grad((fake * noise).sum(), latents, create_graph=True)
    lengths = grad.pow(2).sum(1).sqrt()
    mean = mean_path_length + decay * (lengths.mean() - mean_path_length)
    return (lengths - mean).pow(2).mean(), mean.detach()


run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (real,), batch_size=4)
for epoch in run.epochs(4):
    for i, (sample,) in enumerate(batches):
        latents = torch.randn(len(sample), 8, requires_grad=True)
        fake = model(latents)
        loss = (fake.mean(0) - sample.mean(0)).pow(2).sum()
        if i % g_reg_every == 0:
            penalty, mean_path_length = path_regularize(fake, latents, mean_path_length)
            loss = loss + 2 * g_reg_every * penalty
        loss.backward()
        optimizer.step()
run.save(model, "model.pt")
