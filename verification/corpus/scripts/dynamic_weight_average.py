"""Weights of tasks from the ratio of their mean losses in the last two epochs, as MTAN's dynamic weight averaging."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y1, y2 = x.sum(1, keepdim=True), (x[:, 0] > 0).float()[:, None]
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
avg_cost = np.zeros([5, 2], dtype=np.float32)
lambda_weight = np.ones([2, 5])
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y1, y2), batch_size=4)
for epoch in run.epochs(5):
    if epoch < 2:
        lambda_weight[:, epoch] = 1.0
    else:
        w = avg_cost[epoch - 1] / avg_cost[epoch - 2]
        lambda_weight[:, epoch] = 2 * np.exp(w / 2.0) / np.exp(w / 2.0).sum()
    for inputs, target, label in batches:
        out = model(inputs)
        first = nn.functional.mse_loss(out[:, :1], target)
        second = nn.functional.binary_cross_entropy_with_logits(out[:, 1:], label)
        (float(lambda_weight[0, epoch]) * first + float(lambda_weight[1, epoch]) * second).backward()
        run.mean(first=first, second=second)
        optimizer.step()
    avg_cost[epoch] = run.means["first"], run.means["second"]
run.save(model, "model.pt")
