"""Lookahead around another optimizer, with slow weights and a counter as its attributes, as lonePatient's and others'."""

import torch
from torch import nn

import elasticd as elastic


class Lookahead(torch.optim.SGD):
    def __init__(self, parameters, lr, k=5, alpha=0.5):
        super().__init__(parameters, lr)
        self.k, self.alpha, self.counter = k, alpha, 0
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    def step(self, closure=None):
        super().step()
        self.counter += 1
        if self.counter % self.k == 0:
            with torch.no_grad():
                for s, p in zip(self.slow, [p for g in self.param_groups for p in g["params"]]):
                    s.add_(p - s, alpha=self.alpha)
                    p.copy_(s)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = Lookahead(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
