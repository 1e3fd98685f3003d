"""Loss weights that warm up by a counter in a buffer of the model, as in multi-task heads that keep `step_count`."""

import torch
from torch import nn

import elasticd as elastic


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 2)
        self.register_buffer("step_count", torch.zeros(1, dtype=torch.long))

    def forward(self, x, targets):
        if self.training:
            self.step_count += 1
        losses = (self.body(x) - targets).square().mean(0)
        return losses[0] + losses[1] * (self.step_count / 16).clamp(max=1.0).sum()


torch.manual_seed(0)
x = torch.randn(128, 8)
y = torch.stack([x.sum(1), x[:, 0]], 1)
model = Weighted()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        model(inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
