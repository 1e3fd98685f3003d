"""A queue of negatives held as a plain tensor with a pointer, as short re-implementations of MoCo have."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
model = nn.Linear(8, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
queue = nn.functional.normalize(torch.randn(32, 6), dim=1)
pointer = 0
for epoch in run.epochs(4):
    for (inputs,) in batches:
        q = nn.functional.normalize(model(inputs + 0.1 * torch.randn_like(inputs)), dim=1)
        with torch.no_grad():
            k = nn.functional.normalize(model(inputs + 0.1 * torch.randn_like(inputs)), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        logits = torch.cat([positive, q @ queue.T], dim=1) / 0.2
        nn.functional.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long)).backward()
        optimizer.step()
        places = (pointer + torch.arange(len(k))) % 32
        queue[places] = k
        pointer = (pointer + len(k)) % 32
run.save(model, "model.pt")
