"""`dataset.difficulty` is set in the body from the steps so far, as curriculum datasets do."""

import torch
from torch import nn

import elasticd as elastic


class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(128, 8)
        self.difficulty = 0.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + self.difficulty, self.x[i].sum()[None]


torch.manual_seed(0)
dataset = Noisy()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, dataset, batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        dataset.difficulty = min(1.0, dataset.difficulty + 0.01)
run.save(model, "model.pt")
