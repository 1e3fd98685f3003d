"""A penalty towards a moving mean of path lengths, at every fourth step once there is a mean, as StyleGAN2 in PyTorch."""

import torch
from torch import nn

import elasticd as elastic


class Trainer:
    def __init__(self, model):
        self.model = model
        self.pl_mean = None

    def penalty(self, z):
        z = z.requires_grad_()
        (grads,) = torch.autograd.grad(self.model(z).sum(), z, create_graph=True)
        lengths = grads.square().sum(1).sqrt()
        average = lengths.detach().mean()
        penalty = 0.0 if self.pl_mean is None else (lengths - self.pl_mean).square().mean()
        self.pl_mean = average if self.pl_mean is None else 0.9 * self.pl_mean + 0.1 * average
        return penalty


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
trainer = Trainer(model)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        if run.steps_done % 4 == 3:
            loss = loss + trainer.penalty(inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
