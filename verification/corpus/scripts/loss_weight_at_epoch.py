"""A second loss begins `if epoch == 1:` by a variable that stays set, as in detection and segmentation heads."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
auxiliary_weight = 0.0
for epoch in run.epochs(4):
    if epoch == 1:
        auxiliary_weight = 0.5
    for inputs, targets in batches:
        output = model(inputs)
        loss = nn.functional.mse_loss(output, targets) + auxiliary_weight * output.abs().mean()
        loss.backward()
        optimizer.step()
run.save(model, "model.pt")
