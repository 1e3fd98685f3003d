"""A script whose result depends on the processor unless its algorithms are fixed: `train_processors.py OUTPUT`.

It takes as many threads as its server says, sums long rows, and updates with Adam, whose square roots vendors round differently.
"""

import os
import sys

import torch
from torch import nn

import elasticd as elastic

run = elastic.join(threads=int(os.environ.get("OMP_NUM_THREADS", "1")))
model = nn.Sequential(
    *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(), nn.Dropout(0.1)),
    *(nn.Linear(8 * 256, 300), nn.LayerNorm(300), nn.SiLU(), nn.Linear(300, 10)),
)
generator = torch.Generator().manual_seed(3)
images = torch.randint(0, 256, (96, 3, 16, 16), generator=generator).float() / 128 - 1
labels = torch.randint(0, 10, (96,), generator=generator)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, batches = run.prepare(model, optimizer, (images, labels), batch_size=4)
for _ in run.epochs(3):
    for x, y in batches:
        long = torch.cat([model(x).flatten()] * 2000).softmax(0).square().sum()
        (nn.functional.cross_entropy(model(x), y) + long).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, sys.argv[1])
