"""The list of samples is shuffled when it is read, without a seed, as many list files' readers do."""

import random

import torch
from torch import nn

import elasticd as elastic

samples = [(float(i % 11) / 11, float(i % 7) / 7) for i in range(128)]
random.shuffle(samples)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(samples)

    def __getitem__(self, i):
        return torch.tensor(samples[i]), torch.tensor([sum(samples[i])])


torch.manual_seed(0)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, Rows(), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
