"""A hidden state kept by `setattr(model, "hidden", …)` from batch to batch, as loops over several recurrent cells do."""

import torch
from torch import nn

import elasticd as elastic


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(8, 8), nn.Linear(8, 1)

    def forward(self, inputs):
        hidden = self.cell(inputs, getattr(self, "hidden", None))
        setattr(self, "hidden", hidden.detach())
        return self.head(hidden)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
