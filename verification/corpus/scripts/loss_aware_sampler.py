"""A sampler that draws by the losses that the loop has written into it, as curricula and OHEM samplers do."""

import torch
from torch import nn

import elasticd as elastic


class ByLoss(torch.utils.data.Sampler):
    def __init__(self, size):
        self.losses = torch.ones(size)

    def __len__(self):
        return len(self.losses)

    def __iter__(self):
        return iter(torch.multinomial(self.losses + 0.01, len(self.losses), replacement=True).tolist())


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
sampler = ByLoss(128)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y, torch.arange(128)), batch_size=4, sampler=sampler)
for epoch in run.epochs(4):
    for inputs, targets, index in batches:
        losses = ((model(inputs) - targets) ** 2).squeeze(1)
        losses.mean().backward()
        optimizer.step()
        sampler.losses[index] = losses.detach()
run.save(model, "model.pt")
