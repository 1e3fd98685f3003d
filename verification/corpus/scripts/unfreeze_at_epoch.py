"""The backbone is unfrozen `if epoch == 1:`, as in fine-tuning recipes after fast.ai and ULMFiT."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
for p in model[0].parameters():
    p.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    if epoch == 1:
        for p in model[0].parameters():
            p.requires_grad_(True)
    for inputs, labels in batches:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
run.save(model, "model.pt")
