"""The size of inputs is drawn at every fourth step and held in between, as YOLO's multi-scale training does."""

import random

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 1, 16)
y = x.mean((1, 2)).unsqueeze(1)
model = nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
size = 16
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        if run.steps_done % 4 == 0:
            size = random.choice([8, 12, 16, 20, 24])
        inputs = nn.functional.interpolate(inputs, size=size, mode="linear")
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
