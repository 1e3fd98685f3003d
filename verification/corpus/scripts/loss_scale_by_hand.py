"""A loss scale that grows by hand after some good updates, as scripts for half precision had it before GradScaler."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
scale, good = 16.0, 0


def unscale():
    global scale, good
    for p in model.parameters():
        p.grad.div_(scale)
    good += 1
    if good % 5 == 0:
        scale *= 1.7


run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4, before_update=unscale)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        (nn.functional.mse_loss(model(inputs), targets) * scale).backward()
        optimizer.step()
run.save(model, "model.pt")
