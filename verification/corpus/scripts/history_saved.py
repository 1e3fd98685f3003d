"""A history of losses in a list that goes into the checkpoint, as Keras-like trainers and many notebooks keep one."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
history = []
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
run.save(model, "model.pt")
run.save({"model": model.state_dict(), "history": history}, "checkpoint.pt")
