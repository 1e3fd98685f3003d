"""A queue of features that is filled from the start and used from an epoch on, as SwAV's `epoch_queue_starts`."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
model = nn.Linear(8, 4, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
queue = torch.zeros(32, 4)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(6):
    use_the_queue = epoch >= 4
    for (inputs,) in batches:
        features = nn.functional.normalize(model(inputs), dim=1)
        loss = (features @ features.T).logsumexp(1).mean() - features[:, 0].mean()
        if use_the_queue:
            loss = loss + (features @ queue.T / 0.1).logsumexp(1).mean()
        loss.backward()
        optimizer.step()
        queue[4:] = queue[:-4].clone()
        queue[:4] = features.detach()
run.save(model, "model.pt")
