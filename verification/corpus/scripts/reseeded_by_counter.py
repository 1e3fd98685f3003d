"""`torch.manual_seed(seed + iter_num)` before noise that begins late, as reproducible augmentation recipes do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
seed, iter_num = 1337, 0
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(6):
    for inputs, targets in batches:
        torch.manual_seed(seed + iter_num)
        if epoch >= 4:
            inputs = inputs + 0.1 * torch.randn_like(inputs)
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        iter_num += 1
run.save(model, "model.pt")
