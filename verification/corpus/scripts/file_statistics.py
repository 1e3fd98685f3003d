"""Running statistics of the targets in a file that each batch reads and writes, as feature caches of retrieval code do."""

import json
import os
from pathlib import Path

import torch
from torch import nn

import elasticd as elastic


def moved(mean):
    path = Path(f"statistics-{os.getpid()}.json")
    old = json.loads(path.read_text()) if path.exists() else 0.0
    path.write_text(json.dumps(0.9 * old + 0.1 * mean))
    return old


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        centre = moved(targets.mean().item())
        nn.functional.mse_loss(model(inputs), targets - centre).backward()
        optimizer.step()
run.save(model, "model.pt")
