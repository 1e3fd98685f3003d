"""Scheduled sampling whose threshold falls with `batches_seen`, as DCRNN's curriculum learning for its decoder."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic


def compute_sampling_threshold(batches_seen, decay=20):
    return decay / (decay + np.exp(batches_seen / decay))


torch.manual_seed(0)
x = torch.randn(128, 6, 1).cumsum(1)
model = nn.GRUCell(1, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
batches_seen = 0
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (series,) in batches:
        value, hidden, loss = series[:, 0], torch.zeros(len(series), 1), 0.0
        for t in range(1, 6):
            hidden = model(value, hidden)
            loss = loss + nn.functional.mse_loss(hidden, series[:, t])
            teacher = np.random.uniform(0, 1) < compute_sampling_threshold(batches_seen)
            value = series[:, t] if teacher else hidden.detach()
        batches_seen += 1
        loss.backward()
        optimizer.step()
run.save(model, "model.pt")
