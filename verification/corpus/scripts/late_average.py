"""A running average of the weights, made at the first batch from which it counts and saved, as Kaggle's SWA by hand."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True) + torch.randn(128, 1)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
average, count, start = None, 0, 2
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        if epoch >= start:
            weights = {name: p.detach().clone() for name, p in model.named_parameters()}
            if average is None:
                average = weights
            else:
                average = {name: (count * a + weights[name]) / (count + 1) for name, a in average.items()}
            count += 1
model.load_state_dict(average)
run.save(model, "model.pt")
