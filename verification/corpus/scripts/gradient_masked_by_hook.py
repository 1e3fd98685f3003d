"""A hook on a parameter sets the gradient of frozen rows to zero, as fine-tuning of added tokens does."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
tokens = torch.randint(0, 32, (128, 5))
labels = (tokens.sum(1) % 2).long()
model = nn.Sequential(nn.EmbeddingBag(32, 8), nn.Linear(8, 2))
mask = torch.zeros(32, 1)
mask[24:] = 1
model[0].weight.register_hook(lambda grad: grad * mask)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (tokens, labels), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
