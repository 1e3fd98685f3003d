"""A running mean in a buffer with `persistent=False`, as layers that shall not change their checkpoints have it."""

import torch
from torch import nn

import elasticd as elastic


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.register_buffer("centre", torch.zeros(8), persistent=False)

    def forward(self, inputs):
        with torch.no_grad():
            self.centre = 0.9 * self.centre + 0.1 * inputs.mean(0)
        return self.layer(inputs - self.centre)


torch.manual_seed(0)
x = torch.randn(128, 8) + 1
y = x.sum(1, keepdim=True)
model = Centred()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
