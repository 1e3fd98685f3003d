"""Model, optimizer, scheduler and epoch saved after each epoch, and the best by a validation, as most projects do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x.sum(1, keepdim=True) + torch.randn(160, 1)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
run = elastic.join()
state = run.state(best=float("inf"))
model, optimizer, batches = run.prepare(model, optimizer, (x[:128], y[:128]), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    scheduler.step()
    total = run.evaluate(lambda batch: ((model(batch[0]) - batch[1]) ** 2).sum(), (x[128:], y[128:]), batch_size=8)
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    checkpoint["scheduler"] = scheduler.state_dict()
    run.save(checkpoint, "last.pt")
    if total < state.best:
        state.best = total
        run.save(model, "best.pt")
run.save(model, "model.pt")
