"""Augmentation with Python's and NumPy's `random` in two loader processes, as torchvision-like transforms."""

import random

import numpy as np
import torch
from torch import nn

import elasticd as elastic


class Augmented(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(128, 8)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i].flip(0) if random.random() < 0.5 else self.x[i]
        return x * float(np.random.uniform(0.9, 1.1)), x.sum()[None]


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    run = elastic.join()
    model, optimizer, batches = run.prepare(model, optimizer, Augmented(), batch_size=4, num_workers=2)
    for epoch in run.epochs(4):
        for inputs, targets in batches:
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    run.save(model, "model.pt")
