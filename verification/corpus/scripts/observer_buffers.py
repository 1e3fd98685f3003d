"""The same observer with its minimum and maximum as buffers, as torch.ao's observers have them."""

import torch
from torch import nn

import elasticd as elastic


class Observed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.out = nn.Linear(8, 1)
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    def forward(self, x):
        h = self.inner(x)
        if self.training:
            self.low.mul_(0.9).add_(0.1 * h.detach().min())
            self.high.mul_(0.9).add_(0.1 * h.detach().max())
        scale = (self.high - self.low).clamp(min=1e-3) / 15
        h = h + ((h / scale).round() * scale - h).detach()
        return self.out(h)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = Observed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
