"""An exponential average of the last layer's weight alone, kept in a list and saved, as prototypes and heads are averaged."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
shadow = [model[2].weight.detach().clone()]
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        shadow[0] = 0.95 * shadow[0] + 0.05 * model[2].weight.detach()
run.save(model, "model.pt")
run.save({"head": shadow}, "head.pt")
