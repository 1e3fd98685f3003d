"""A Muon-like optimizer with Newton-Schulz and its momentum in `self.state`, as modded-nanogpt."""

import torch
from torch import nn

import elasticd as elastic


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.02):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("momentum", torch.zeros_like(p))
                m.mul_(0.9).add_(p.grad)
                g = m / (m.norm() + 1e-7)
                if g.ndim == 2:
                    for _ in range(3):
                        g = 1.5 * g - 0.5 * g @ g.T @ g
                p.sub_(g, alpha=group["lr"])


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = Muon(model.parameters())
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
