"""A warm-up that follows the position `bar.n` of tqdm's bar, as notebooks with one bar over all batches have."""

import sys

import torch
import tqdm
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
bar = tqdm.tqdm(total=1000, file=sys.stdout)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        (nn.functional.mse_loss(model(inputs), targets) * min(1.0, (bar.n + 1) / 60)).backward()
        optimizer.step()
        bar.update(1)
run.save(model, "model.pt")
