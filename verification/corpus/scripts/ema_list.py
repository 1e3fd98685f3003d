"""An exponential average kept as a list of tensors and saved at the end, as in minimal diffusion and GAN repositories."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
shadow = [p.detach().clone() for p in model.parameters()]
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        for average, p in zip(shadow, model.parameters()):
            average.mul_(0.95).add_(p.detach(), alpha=0.05)
run.save(model, "model.pt")
run.save({"ema": shadow}, "ema.pt")
