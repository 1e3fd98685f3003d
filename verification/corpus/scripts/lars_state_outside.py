"""A LARS of one's own whose momentum lives in a list beside `optimizer.state`, as short optimizers in repositories."""

import torch
from torch import nn

import elasticd as elastic


class Lars(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.momentum = [torch.zeros_like(p) for g in self.param_groups for p in g["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        parameters = [p for g in self.param_groups for p in g["params"]]
        for p, m in zip(parameters, self.momentum):
            trust = (p.norm() + 1e-3) / (p.grad.norm() + 1e-3)
            m.mul_(0.9).add_(p.grad, alpha=float(trust) * self.param_groups[0]["lr"])
            p.sub_(m)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = Lars(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
