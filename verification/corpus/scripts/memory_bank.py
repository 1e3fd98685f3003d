"""A memory bank with one feature for each sample, moved after its batch, as instance discrimination (NPID) has."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
bank = nn.functional.normalize(torch.randn(128, 4), dim=1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, torch.arange(128)), batch_size=4)
for epoch in run.epochs(4):
    for inputs, index in batches:
        features = nn.functional.normalize(model(inputs), dim=1)
        nn.functional.cross_entropy(features @ bank.T / 0.2, index).backward()
        optimizer.step()
        bank[index] = nn.functional.normalize(0.5 * bank[index] + 0.5 * features.detach(), dim=1)
run.save(model, "model.pt")
