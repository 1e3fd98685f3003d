"""A criterion with its own BatchNorm over targets that no optimizer knows, as PopArt and value normalizers in PPO codes."""

import torch
from torch import nn

import elasticd as elastic


class Criterion(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1, affine=False)

    def forward(self, output, target):
        self.norm(target)
        centred = (target - self.norm.running_mean) / self.norm.running_var.sqrt()
        return nn.functional.mse_loss(output, centred)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
criterion = Criterion()
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        criterion(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
