"""Predictions of each sample averaged over epochs, used once the ramp-up weight is above zero, as temporal ensembling."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
ensemble = torch.zeros(128, 2)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y, torch.arange(128)), batch_size=4)
for epoch in run.epochs(6):
    weight = 0.0 if epoch < 4 else 0.5 * (epoch - 3)
    for inputs, labels, index in batches:
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
        if weight > 0:
            loss = loss + weight * ((outputs.softmax(1) - ensemble[index]) ** 2).mean()
        loss.backward()
        optimizer.step()
        ensemble[index] = 0.6 * ensemble[index] + 0.4 * outputs.detach().softmax(1)
run.save(model, "model.pt")
