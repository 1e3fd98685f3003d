"""The queue of negatives as a buffer of the module, as in MoCo itself."""

import torch
from torch import nn

import elasticd as elastic


class Moco(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 6)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(32, 6), dim=1))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        q = nn.functional.normalize(self.encoder(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            k = nn.functional.normalize(self.encoder(x + 0.1 * torch.randn_like(x)), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().T], dim=1) / 0.2
        places = (self.pointer + torch.arange(len(k))) % 32
        self.queue[places] = k
        self.pointer[0] = (self.pointer[0] + len(k)) % 32
        return logits


torch.manual_seed(0)
x = torch.randn(128, 8)
model = Moco()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        nn.functional.cross_entropy(model(inputs), torch.zeros(len(inputs), dtype=torch.long)).backward()
        optimizer.step()
run.save(model, "model.pt")
