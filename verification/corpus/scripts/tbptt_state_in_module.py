"""A recurrent cell that keeps its last state as an attribute between batches, as stateful LSTMs after Keras do."""

import torch
from torch import nn

import elasticd as elastic


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.out = nn.Linear(8, 1)
        self.last = torch.zeros(4, 8)

    def forward(self, x):
        h = self.last.detach()
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        self.last = h.detach()
        return self.out(h)


torch.manual_seed(0)
x = torch.randn(128, 3, 4)
y = x.sum((1, 2))[:, None]
model = Stateful()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4, shuffle=False)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
