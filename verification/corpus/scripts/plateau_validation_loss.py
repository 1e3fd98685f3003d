"""`ReduceLROnPlateau` fed with `run.evaluate`, as the validation loops of most projects."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True) + torch.randn(128, 1)
validation = (torch.randn(32, 8), torch.randn(32, 1))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(5):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    total = run.evaluate(lambda b: ((model(b[0]) - b[1]) ** 2).sum(), validation, batch_size=8)
    plateau.step(total)
run.save(model, "model.pt")
