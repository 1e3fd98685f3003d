"""The learning rate falls when the mean loss has not improved for some epochs, with `bad_epochs` counted by hand."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True) + torch.randn(128, 1)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best_loss, bad_epochs = float("inf"), 0
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(6):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        run.mean(loss=loss)
        loss.backward()
        optimizer.step()
    if run.means["loss"] < best_loss - 0.3:
        best_loss, bad_epochs = run.means["loss"], 0
    else:
        bad_epochs += 1
    if bad_epochs >= 2:
        for group in optimizer.param_groups:
            group["lr"] *= 0.1
        bad_epochs = 0
run.save(model, "model.pt")
