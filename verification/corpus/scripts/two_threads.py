"""Attention computed by two threads per operation, `join(threads=2)`, as CPU training of small transformers does."""

import torch
from torch import nn

import elasticd as elastic

run = elastic.join(threads=2)
torch.manual_seed(0)
x = torch.randn(128, 16, 32)
y = x.mean((1, 2))[:, None]
layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
model = nn.Sequential(layer, nn.Flatten(), nn.Linear(16 * 32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
