"""Sharpness-aware minimization with `first_step` and `second_step`, as davda54's SAM."""

import torch
from torch import nn

import elasticd as elastic


class Sam(torch.optim.SGD):
    def first_step(self):
        norm = torch.norm(torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["moved"] = p.grad * (0.05 / (norm + 1e-12))
                p.data.add_(self.state[p]["moved"])
        self.zero_grad()

    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(self.state[p]["moved"])
        self.step()


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = Sam(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.first_step()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.second_step()
run.save(model, "model.pt")
