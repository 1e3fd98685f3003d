"""Options that a table of steps sets by `setattr`, as command lines with schedules (StyleGAN, GAN zoos) do."""

import argparse

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
opt = argparse.Namespace(iteration=0, sparsity=0.0, noise=0.0)
milestones = {160: {"sparsity": 0.05}, 170: {"noise": 0.1}}
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(6):
    for inputs, targets in batches:
        setattr(opt, "iteration", getattr(opt, "iteration") + 1)
        for name, value in milestones.get(opt.iteration, {}).items():
            setattr(opt, name, value)
        loss = nn.functional.mse_loss(model(inputs + opt.noise), targets)
        (loss + opt.sparsity * model.weight.abs().sum()).backward()
        optimizer.step()
run.save(model, "model.pt")
