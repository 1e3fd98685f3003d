"""`random_split` of a dataset into train and validation before anything is seeded, as tutorials do."""

import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

import elasticd as elastic

x = torch.linspace(-1, 1, 160 * 4).view(160, 4)
whole = TensorDataset(x, x.sum(1, keepdim=True))
torch.seed()
train_set, validation_set = random_split(whole, [128, 32])
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, train_set, batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    error = run.evaluate(lambda b: ((model(b[0]) - b[1]) ** 2).sum(), validation_set, batch_size=8)
    run.log(f"epoch {epoch}: {error:.4f}")
run.save(model, "model.pt")
