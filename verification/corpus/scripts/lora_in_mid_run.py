"""Low-rank adapters are added at an epoch and the rest frozen, as ReLoRA and progressive adapters do."""

import torch
from torch import nn

import elasticd as elastic


class Lora(nn.Module):
    def __init__(self, size, rank=2):
        super().__init__()
        self.base = nn.Linear(size, 1)
        self.down = nn.Parameter(torch.randn(rank, size) * 0.1)
        self.up = nn.Parameter(torch.zeros(1, rank))
        self.enabled = False

    def forward(self, x):
        out = self.base(x)
        return out + x @ self.down.T @ self.up.T if self.enabled else out


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = Lora(8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    model.enabled = epoch >= 1
    model.base.requires_grad_(epoch < 1)
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
