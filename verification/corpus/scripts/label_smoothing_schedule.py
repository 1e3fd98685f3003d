"""A criterion whose `label_smoothing` is lowered after each batch, as some recipes for ViT do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
model = nn.Linear(8, 2)
criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        criterion(model(inputs), labels).backward()
        optimizer.step()
        criterion.label_smoothing = max(0.0, criterion.label_smoothing - 0.002)
run.save(model, "model.pt")
