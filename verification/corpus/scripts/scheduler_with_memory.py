"""A `LambdaLR` whose function remembers how often it was called, as warm-ups with patience are written."""

import torch
from torch import nn

import elasticd as elastic


class WarmUp:
    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return min(1.0, self.calls / 40)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
warm_up = WarmUp()
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
run.save(model, "model.pt")
