"""The encoder is without gradient for the first updates, counted by the module, as wav2vec 2.0's `freeze_finetune_updates`."""

import contextlib

import torch
from torch import nn

import elasticd as elastic


class Finetuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(8, 16), nn.Linear(16, 2)
        self.freeze_finetune_updates = 132
        self.num_updates = 0

    def set_num_updates(self, num_updates):
        self.num_updates = num_updates

    def forward(self, x):
        ft = self.freeze_finetune_updates <= self.num_updates
        with torch.no_grad() if not ft else contextlib.ExitStack():
            features = self.encoder(x)
        return self.head(torch.relu(features))


torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
model = Finetuned()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(6):
    for inputs, labels in batches:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        model.set_num_updates(model.num_updates + 1)
run.save(model, "model.pt")
